"""`clrt generate`, `clrt perplexity` and `clrt bench --generate` on a tiny model."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clrt.cli import app, bench_generate, generate
from clrt.cli.sampling import NOT_OPTIONS, SAMPLING_OPTIONS
from clrt.errors import visible
from clrt.generation.options import Sampling
from clrt.generation.text_generator import TextGenerator
from tests.unit.cli.language_models import run, write_model

FEW = ("--max-new-tokens", "12")


def printed(text: object) -> str:
    """Returns a text as commands print it, control characters of random weights escaped."""
    return visible(f"{text}\n", lines=True)


def test_generate_command_prints_library_text(model: Path, generator: TextGenerator) -> None:
    wanted = generator.generate("The quick", max_new_tokens=12).text
    for more in ((), ("--no-stream",)):
        result = run("generate", model, "The quick", *FEW, *more)
        assert result.exit_code == 0, result.output
        assert result.stdout == printed(wanted)
    drawn = generator.generate("The quick", max_new_tokens=12, temperature=1.5, seed=4, top_k=30)
    options = ("--temperature", "1.5", "--seed", "4", "--top-k", "30")
    assert run("generate", model, "The quick", *FEW, *options).stdout == printed(drawn)


def test_cli_has_every_sampling_option() -> None:
    names = [f.name for f in fields(Sampling)]
    assert list(SAMPLING_OPTIONS) == [name for name in names if name not in NOT_OPTIONS]
    assert set(NOT_OPTIONS) < set(names)


def test_prompt_is_read_from_argument_file_or_stdin(
    model: Path, generator: TextGenerator, tmp_path: Path
) -> None:
    wanted = printed(generator.generate("café", max_new_tokens=12))
    file = tmp_path / "prompt.txt"
    file.write_text("café", "utf-8")
    assert run("generate", model, *FEW, "--file", file).stdout == wanted
    for given in ((), ("-",)):
        assert run("generate", model, *given, *FEW, text="café".encode()).stdout == wanted
    twice = run("generate", model, "x", "--file", file)
    assert twice.exit_code == 1 and "given twice" in twice.stderr
    assert "not UTF-8 text (byte 1)" in run("generate", model, text=b"a\xff").stderr


def test_chat_option_applies_chat_template(model: Path, generator: TextGenerator) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    wanted = generator.generate(messages, max_new_tokens=12)
    found = run("generate", model, "Hello", "--chat", "--system", "Be brief.", *FEW)
    assert found.stdout == printed(wanted)
    assert "--system needs --chat" in run("generate", model, "x", "--system", "y").stderr


def test_json_has_text_tokens_logprobs_and_timings(model: Path, generator: TextGenerator) -> None:
    result = run("generate", model, "x", *FEW, "--json", "--logprobs", "2", "--stop", "e")
    found = json.loads(result.stdout)
    wanted = generator.generate("x", max_new_tokens=12, logprobs=2, stop="e")
    assert found["text"] == wanted.text and found["tokens"] == list(wanted.tokens)
    assert found["finish_reason"] == wanted.finish_reason
    assert [len(one["top"]) for one in found["logprobs"]] == [2] * len(wanted.tokens)
    assert found["timings"]["tokens"] == len(wanted.tokens)
    several = run("generate", model, "x", *FEW, "--json", "--num-return-sequences", "2")
    assert len(several.stdout.splitlines()) == 2
    beams = run("generate", model, "x", *FEW, "--num-beams", "2", "--num-return-sequences", "2")
    assert beams.stdout.startswith("[1]\n") and "\n[2]\n" in beams.stdout


def test_draft_model_keeps_text_and_reports_acceptance(
    model: Path, generator: TextGenerator
) -> None:
    """The model as its own draft model: drafts match."""
    options = ("--draft", str(model), "--draft-tokens", "7", "--lookup-tokens", "3")
    result = run("generate", model, "The quick", *FEW, *options, "--timings")
    wanted = generator.generate("The quick", max_new_tokens=12)
    assert result.stdout == printed(wanted), result.output
    assert re.search(r"; [1-9]\d* of \d+ guessed tokens accepted$", result.stderr.strip())


def test_json_schema_and_regex_constrain_text(model: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["x", "yes"]}')
    found = run("generate", model, "x", "--json-schema", schema, "--timings")
    assert json.loads(found.stdout) in ("x", "yes")
    assert "first token after" in found.stderr and "tokens/s" in found.stderr
    assert run("generate", model, "x", "--regex", "[a-c]{3}").stdout.strip("abc") == "\n"


@pytest.mark.parametrize("shown", [(), ("--no-stream",), ("--json",)])
def test_ctrl_c_prints_partial_text_and_exits(
    model: Path, shown: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    plain, taken = TextGenerator.stream, []

    def stream(*args: object, **options: object) -> object:
        made = plain(*args, **options)
        take = made._answer.take

        def taking(*given: object) -> None:
            take(*given)
            taken.append(given)
            if len(taken) == 3:
                signal.raise_signal(signal.SIGINT)

        made._answer.take = taking
        return made

    monkeypatch.setattr(TextGenerator, "stream", stream)
    result = run("generate", model, "The quick", "--max-new-tokens", "200", *shown)
    assert result.exit_code == generate.EXIT_INTERRUPTED, result.output
    assert len(taken) == 3 and len(result.stdout) > 1 and result.stdout.endswith("\n")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("x", "--temperature", "-1"), "temperature is -1.0"),
        (("x", "--logit-bias", "a=1"), "'a=1' is not a bias"),
        (("x", "--cache", "int3"), "cache is 'int3'"),
        (("x " * 500,), "and the context 320; shorten it"),
        (("", *FEW), "The prompt has no tokens"),
        (("x", "--file", "none.txt"), "given twice"),
        (("x", "--draft-tokens", "4"), "draft_tokens needs a draft model"),
        (("x", "--draft", "none"), "Model 'none' is neither a path nor"),
        (("--file", "none.txt"), "'none.txt' cannot be read: No such file"),
        (("x", "--json-schema", "none.json"), "'none.json' cannot be read"),
    ],
)
def test_generate_errors_print_one_line(
    model: Path, options: tuple[str, ...], message: str
) -> None:
    result = run("generate", model, *options)
    assert result.exit_code == 1 and message in result.stderr
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1


def test_missing_model_template_or_device_is_reported(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none", "No file or folder"), (tmp_path, "config.json")):
        result = run("generate", path, "x")
        assert result.exit_code == 1 and message in result.stderr, result.output
    bare = write_model(tmp_path / "bare", template=None)
    assert "has no chat template" in run("generate", bare, "x", "--chat").stderr
    absent = CliRunner().invoke(app, ["generate", str(bare), "x", "--device", "nowhere"])
    assert absent.exit_code == 1 and "No OpenCL device matches 'nowhere'" in absent.stderr


def test_perplexity_command_matches_library(
    model: Path, generator: TextGenerator, tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("The quick brown fox does not jump. " * 60)
    told: list[tuple[int, int]] = []
    wanted = generator.perplexity(file.read_text(), 100, lambda *now: told.append(now))
    assert [n for n, _ in told] == sorted(n for n, _ in told) and len({n for _, n in told}) == 1
    assert told[-1][0] == told[-1][1]
    result = run("perplexity", model, file, "--stride", "100")
    assert result.stdout == f"{wanted:.4f}\n", result.output
    found = json.loads(run("perplexity", model, file, "--stride", "100", "--json").stdout)
    assert found["perplexity"] == pytest.approx(wanted) and found["context"] == 320
    assert "stride is 0" in run("perplexity", model, file, "--stride", "0").stderr
    compared = run("perplexity", model, file, "--compare", "llama.cpp", "--context", "320")
    wanted = generator.perplexity(file.read_text(), compare="llama.cpp")
    assert compared.stdout == f"{wanted:.4f}\n", compared.output


def test_bench_generate_reports_prefill_and_decode_speed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_generate, "_PROMPTS", (16, 512))
    monkeypatch.setattr(bench_generate, "_CONTEXTS", (32,))
    result = run("bench", "--generate", model, "--seconds", "0.1")
    assert result.exit_code == 0, result.output
    assert "prefill of 16" in result.stdout and "decode at 32" in result.stdout
    assert "A context of 320 tokens has no room for 512." in result.stderr
    found = json.loads(run("bench", "--generate", model, "--seconds", "0.1", "--json").stdout)
    assert [(s["what"], s["tokens"]) for s in found["speeds"]] == [("prefill", 16), ("decode", 32)]
    assert all(s["tokens_per_s"] > 0 for s in found["speeds"])
    assert "uses its own lengths" in run("bench", "--generate", model, "--shape", "x=1").stderr

"""`clrt embed` with a fake encoder."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import clrt
from clrt.cli import app, embed
from clrt.errors import DeviceError, InputError

made: list[FakeEncoder] = []


class FakeEncoder:
    """Encodes a sentence as two numbers: its length and 0.1."""

    def __init__(self, path: str, **options: Any) -> None:
        if str(path) == "missing":
            raise DeviceError("No OpenCL device matches 'x'.")
        self.options = options
        self.calls: list[dict[str, Any]] = []
        self.model = SimpleNamespace(device=SimpleNamespace(name="fake device"))
        made.append(self)

    def __enter__(self) -> FakeEncoder:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def encode(self, sentences: list[str], **options: Any) -> np.ndarray[Any, Any]:
        self.calls.append({"sentences": sentences, **options})
        return np.array([[len(s), 0.1] for s in sentences], np.float32)


@pytest.fixture(autouse=True)
def encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    monkeypatch.setattr(embed, "SentenceEncoder", FakeEncoder)
    monkeypatch.setattr(embed, "find_model", Path)


def run(*args: str | Path, text: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["embed", *map(str, args)], input=text)


def test_terminal_shows_vectors_and_similarity() -> None:
    result = run("-m", "m", "a", "bcd")
    assert result.exit_code == 0, result.output
    assert "2 vectors of 2 numbers" in result.stdout
    assert "+3.0000  +0.1000" in result.stdout
    assert "cosine similarity" in result.stdout


def test_markup_in_sentences_is_printed_literally() -> None:
    assert "[bold]" in run("-m", "m", "[bold]", "[/x]").stdout


def test_terminal_truncates_many_sentences(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("a\n" * 50)
    result = run("-m", "m", "--file", lines)
    assert "… and 30 more" in result.stdout
    assert "cosine similarity" not in result.stdout


def test_json_prints_one_object_per_sentence() -> None:
    result = run("-m", "m", "--json", "é", "bc")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert rows == [{"text": "é", "embedding": [1, 0.1]}, {"text": "bc", "embedding": [2, 0.1]}]


def test_npy_output_replaces_file(tmp_path: Path) -> None:
    output = tmp_path / "vectors.npy"
    output.write_text("old")
    result = run("-m", "m", "-o", output, "a", "bc")
    assert result.exit_code == 0, result.output
    assert "2 vectors of 2 numbers" in result.stderr
    assert "fake device" in result.stderr
    np.testing.assert_array_equal(np.load(output), np.array([[1, 0.1], [2, 0.1]], np.float32))
    assert [p.name for p in tmp_path.iterdir()] == ["vectors.npy"]


def test_npy_is_written_to_pipe() -> None:
    result = run("-m", "m", "-o", "-", "a", "bc")
    vectors = np.array([[1, 0.1], [2, 0.1]], np.float32)
    np.testing.assert_array_equal(np.load(io.BytesIO(result.stdout_bytes)), vectors)
    assert "2 vectors of 2 numbers in standard output" in result.stderr
    if os.path.exists("/dev/fd"):
        reading, writing = os.pipe()
        embed.save_npy(Path(f"/dev/fd/{writing}"), vectors)
        os.close(writing)
        with open(reading, "rb") as pipe:
            np.testing.assert_array_equal(np.load(io.BytesIO(pipe.read())), vectors)


def test_npy_to_terminal_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    terminal = SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True))
    for stands_in in (terminal, SimpleNamespace(stdout=None)):
        monkeypatch.setattr(embed, "sys", stands_in)
        result = run("-m", "m", "-o", "-", "a")
        assert result.exit_code == 1 and "need a pipe" in result.stderr
    assert not made and not list(tmp_path.iterdir())


def test_output_does_not_overwrite_model_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.onnx").write_text("weights")
    monkeypatch.setattr(embed, "find_model", lambda _: tmp_path)
    result = run("-m", "m", "-o", tmp_path / "model.onnx", "a")
    assert result.exit_code == 1 and "belongs to what is read" in result.stderr
    assert (tmp_path / "model.onnx").read_text() == "weights"


def test_failed_npy_write_keeps_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "vectors.npy"
    output.write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        embed.save_npy(output, np.zeros((1, 1), np.float32))
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


def test_file_lines_keep_order_and_blanks(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_bytes("\ufeffone\r\n\ntwo words\n".encode())
    run("-m", "m", "--file", lines, "first")
    assert made[0].calls[0]["sentences"] == ["first", "one", "", "two words"]


def test_sentences_are_read_from_stdin() -> None:
    run("-m", "m", "--file", "-", text="a\nb")
    assert made[0].calls[0]["sentences"] == ["a", "b"]


def test_options_reach_encoder() -> None:
    run(
        *("-m", "m", "--device", "gpu", "--pooling", "cls", "--max-length", "9"),
        *("--batch-size", "4", "--truncate-dim", "8", "--prompt", "q: ", "--no-normalize", "a"),
    )
    assert made[0].options == {"device": "gpu", "pooling": "cls", "max_length": 9}
    assert made[0].calls[0] == {
        "sentences": ["a"],
        "batch_size": 4,
        "normalize_embeddings": False,
        "truncate_dim": 8,
        "prompt": "q: ",
    }


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-m", "m"], "There is nothing to embed"),
        (["-m", "missing", "a"], "No OpenCL device matches 'x'."),
        (["-m", "m", "--file", "/no/such.txt"], "'/no/such.txt' cannot be read"),
        (["-m", "m", "-o", "/no/such/v.npy", "a"], "'/no/such' is not a folder"),
        (["-m", "m", "-o", "/", "a"], "'/' is a folder"),
        (["-m", "m", "-o", "-", "--json", "a"], "both write to standard output"),
        (["-m", "m", "-o", __file__, "--file", __file__], "belongs to what is read"),
    ],
)
def test_embed_errors_print_one_line(args: list[str], message: str) -> None:
    result = run(*args)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_non_utf8_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_bytes(b"a\xff")
    result = run("-m", "m", "--file", tmp_path / "lines.txt")
    assert result.exit_code == 1
    assert "is not UTF-8 text (byte 1)" in result.stderr


def test_version_option_prints_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.stdout == f"clrt {clrt.__version__}\n"

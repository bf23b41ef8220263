"""clrt-convert from the shell, and its output files."""

from __future__ import annotations

import importlib.util
import io
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import clrt
from clrt.cli import conversion, convert_report
from clrt.cli.convert import EXIT_DIFFERS, app
from clrt.cli.random_inputs import sample_inputs
from clrt.errors import InputError, ModelError
from clrt.ir.op import Array
from clrt.models.sources import onnx_file
from clrt.passes.compress_weights import WeightCompression
from clrt.runtime.execution.execution import Execution
from clrt.runtime.opencl.devices import DeviceInfo, devices
from clrt.tools.convert import Difference, read_encoder
from tests.harness import SWEEP, all_devices
from tests.models.fixtures import load_family
from tests.models.oracle import model_folder
from tests.unit.text import tiny

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
SENTENCES = [
    "A cat sleeps on the windowsill.",
    "The kitten naps by the window.",
    "Interest rates rose by half a point in March.",
    "",
    "Return a new array of given shape and type, filled with zeros, and see also its fellows.",
]
FAMILIES = ("bert_torchscript17", "gpt2_torchscript17", "roberta_classifier_torchscript17")


def _run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in args])


def _converted(tmp_path: Path, *args: object) -> Path:
    target = tmp_path / "m.clrt"
    result = _run(model_folder(), "-o", target, *args)
    assert result.exit_code == 0, result.output
    return target


@pytest.mark.lengthy
@DEVICES
def test_converted_encoder_matches_original_vectors(tmp_path: Path, device: DeviceInfo) -> None:
    """Covers a device that packs weights differently from the device used for conversion."""
    target = _converted(tmp_path, "--shape", "input_ids=2x16", "--verify")
    with clrt.SentenceEncoder(model_folder(), device=device.index) as plain:
        expected = plain.encode(SENTENCES)
        read = plain.max_length, plain.pooling
    with clrt.SentenceEncoder(target, device=device.index) as ours:
        np.testing.assert_allclose(ours.encode(SENTENCES), expected, atol=1e-6)
        assert not ours.model.host_nodes
        assert [s["input_ids"] for s in ours.model.shapes] == [(2, 16)]
        ours.model.warmup()
        _other_tiles(ours.model)
        assert (ours.max_length, ours.pooling) == read


def _other_tiles(model: clrt.Model) -> None:
    """Compares results of tile sizes that differ from the packed panels in the file."""
    (shapes,) = model.shapes
    feeds = sample_inputs(model, {n: tuple(s) for n, s in shapes.items()})
    expected = model.run(feeds)["last_hidden_state"]
    bound = model.bind(shapes, {"gemm_cpu": {"T_MR": 3, "T_NV": 2, "T_VW": 8}})
    found = Execution(bound, feeds, {"last_hidden_state": False}).run()["last_hidden_state"]
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("option", "share", "cosine"),
    [
        ("--precision=float16", 0.52, 0.99999),
        ("--precision=bfloat16", 0.52, 0.9999),
        ("--quantize=int8", 0.28, 0.999),
    ],
)
def test_low_precision_options_shrink_file_and_keep_cosine(
    tmp_path: Path, option: str, share: float, cosine: float
) -> None:
    check_fewer_bits(_converted(tmp_path, option), share, cosine)


@cache
def _vectors() -> Array:
    """Returns the vectors of the texts in `SENTENCES` by the unconverted encoder."""
    with clrt.SentenceEncoder(model_folder()) as encoder:
        return encoder.encode([s for s in SENTENCES if s])


def check_fewer_bits(target: Path, share: float, cosine: float) -> None:
    whole = (model_folder() / "model.safetensors").stat().st_size
    assert target.stat().st_size < share * whole
    with clrt.SentenceEncoder(target, strict=True) as encoder:
        vectors = encoder.encode([s for s in SENTENCES if s])
        assert encoder.model._runner.room.weights.nbytes < share * whole
    assert (vectors * _vectors()).sum(axis=1).min() >= cosine


@pytest.mark.lengthy
@SWEEP
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_converts_and_verifies(tmp_path: Path, name: str, device: DeviceInfo) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "m.clrt"
    source.write_bytes(load_family(name).SerializeToString())
    for option in ("--precision=float32", "--precision=auto", "--quantize=int8"):
        result = _run(source, "-o", target, "--verify", "--device", device.index, option)
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "option", ["--precision=float32", "--precision=float16", "--quantize=int4"]
)
def test_onnx_export_matches_compiled_model(tmp_path: Path, option: str) -> None:
    """ONNX Runtime and clrt give equal results with the same weights."""
    source, target, compiled = (tmp_path / n for n in ("m.onnx", "out.onnx", "m.clrt"))
    source.write_bytes(load_family(FAMILIES[0]).SerializeToString())
    for path, to in ((target, "onnx"), (compiled, "clrt")):
        assert _run(source, "-o", path, "--to", to, "--verify", option).exit_code == 0
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    ids = np.arange(12).reshape(2, 6)
    feeds = {i.name: ids if i.name == "input_ids" else ids * 0 + 1 for i in session.get_inputs()}
    theirs = dict(
        zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True)
    )
    with clrt.load(compiled) as model:
        for name, ours in model.run(feeds).items():
            assert np.abs(ours - theirs[name]).max() <= 1e-5 * np.abs(theirs[name]).max()


def test_dim_and_keep_outputs_options_apply(tmp_path: Path) -> None:
    target = _converted(tmp_path, "--dim", "batch=3", "--keep-outputs", "pooler_output")
    with clrt.load(target) as model:
        assert [o.name for o in model.outputs] == ["pooler_output"]
        assert {spec.shape[0] for spec in model.inputs if spec.shape} == {3}


def test_output_file_is_named_after_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt.onnx").write_bytes(load_family("gpt2_torchscript17").SerializeToString())
    assert _run("gpt.onnx").exit_code == 0
    assert _run("gpt.onnx", "--to", "onnx").exit_code == 0
    assert _run("all-MiniLM-L6-v2").exit_code == 0
    assert {p.name for p in tmp_path.iterdir()} == {
        "gpt.onnx",
        "gpt.clrt",
        "gpt_optimized.onnx",
        "all-MiniLM-L6-v2.clrt",
    }


def test_converted_file_can_be_converted_again(tmp_path: Path) -> None:
    first = _converted(tmp_path)
    second = tmp_path / "again.clrt"
    assert _run(first, "-o", second, "--precision", "float16").exit_code == 0
    assert second.stat().st_size < 0.52 * first.stat().st_size
    assert clrt.SentenceEncoder(second).encode(SENTENCES).shape == (5, 384)


def test_precompiled_programs_need_no_build(tmp_path: Path) -> None:
    cache = tmp_path / "programs"
    shapes = ("--shape", "input_ids=2x16")
    target = _converted(tmp_path, *shapes, "--precompile", cache)
    assert list(cache.iterdir())
    again = _run(target, "-o", tmp_path / "again.clrt", *shapes, "--precompile", cache)
    said = re.search(r"^0 programs compiled for .+ into '(.+)' in [\d.]+ s", again.stdout, re.M)
    assert said is not None and said[1] == str(cache), again.stdout
    assert re.search(r"They serve only this: .+ of .+, driver .+, clrt [\d.]+", again.stdout)
    with clrt.load(target, cache_dir=cache) as model:
        before = model._session.programs.builds
        model.warmup([{s.name: (2, 16) for s in model.inputs}])
        with clrt.SentenceEncoder(target, cache_dir=cache) as encoder:
            encoder.encode(SENTENCES[0])
        assert model._session.programs.builds == before


def test_precompile_skips_simulators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose index does not exist would be an error."""
    real = [d for d in devices() if not d.caps.simulator]
    fake = replace(real[0], index=99, caps=replace(real[0].caps, simulator=True))
    monkeypatch.setattr(conversion, "devices", lambda: [*real, fake])
    text = "g (float[n] x) => (float[n] y) { y = Add(x, x) }"
    source = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>{text}'), source)
    here = ("--precompile", tmp_path / "programs", "--all-devices-here")
    result = _run(source, "-o", tmp_path / "m.clrt", *here)
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "programs").iterdir())
    lines = [line for line in result.stdout.splitlines() if " compiled for " in line]
    assert len(lines) == len([d for d in real if d.usable])
    assert all(re.search(r"^[1-9]\d* programs? compiled for .* s\b", line) for line in lines)


def test_verify_above_tolerance_fails_and_writes_nothing(tmp_path: Path) -> None:
    source, folder = tmp_path / "m.onnx", tmp_path / "out"
    source.write_bytes(load_family(FAMILIES[0]).SerializeToString())
    folder.mkdir()
    options = ("--quantize", "int8", "--verify", "--tolerance", "1e-9")
    for before in (None, b"an older file"):
        if before is not None:
            (folder / "m.clrt").write_bytes(before)
        result = _run(source, "-o", folder / "m.clrt", *options)
        assert result.exit_code == EXIT_DIFFERS
        assert "m.clrt' is not written; raise --tolerance" in " ".join(result.stderr.split())
        kept = {file.name: file.read_bytes() for file in folder.iterdir()}
        assert kept == ({} if before is None else {"m.clrt": before})


def _feeds(tmp_path: Path, **arrays: Array) -> Path:
    np.savez(tmp_path / "feeds.npz", **arrays)
    return tmp_path / "feeds.npz"


def test_verify_accepts_inputs_file(tmp_path: Path) -> None:
    ids = np.array([[101, 7592, 102]])
    given = _feeds(tmp_path, input_ids=ids, attention_mask=ids * 0 + 1, token_type_ids=ids * 0)
    target = _converted(tmp_path, "--verify", "--inputs", given)
    assert target.is_file()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["missing.onnx"], "No file or folder 'missing.onnx' exists"),
        (["{model}", "--dim", "batch"], "'batch' is not a dim; write it as batch=8"),
        (
            ["{model}", "--dim", "btach=8"],
            "no symbolic dim 'btach'; it has batch (input_ids axis 0",
        ),
        (["{model}", "--dim", "batch=99999999999999999999"], "larger than a tensor may be"),
        (["{model}", "--dim", "input_ids:2=8"], "'input_ids' int64[batch,sequence] has no axis 2"),
        (["{model}", "--dim", "batch=1", "--dim", "input_ids:0=2"], "is set to both 1 and 2"),
        (["{model}", "--keep-outputs", "x"], "no output 'x'; it has last_hidden_state"),
        (["{model}", "--shape", "input_ids=8"], "rank 1; it has rank 2"),
        (["{model}", "--shape", "input_ids"], "write it as input_ids=8x128"),
        (["{model}", "--precision", "float16", "--quantize", "int8"], "give one of them"),
        (["{model}", "-o", "no/such/m.clrt"], "is not a folder; --output needs an existing one"),
        (["{model}", "--inputs", "missing.npz"], "cannot be read as an .npz"),
        (
            ["{model}", "--inputs", "own.onnx"],
            "of arrays (it is damaged, or another kind of file); write it",
        ),
        (["{model}", "--device", "nonsense"], "No OpenCL device"),
        (["own.onnx", "-o", "own.onnx", "--to", "onnx"], "belongs to what is read; name another"),
        (["own.onnx", "--report", "own.onnx"], "another file by --report"),
        (["own.onnx", "--dump-ir", "link"], "another file by --dump-ir"),
        (["own.onnx", "--inputs", "x.npz", "--dump-ir", "x.npz"], "by --dump-ir"),
        (["own.onnx", "--dump-ir", "x.html", "--report", "x.html"], "'x.html' belongs to --report"),
        (["folder", "--to", "onnx", "-o", "folder/model.onnx"], "belongs to what is read"),
        (["{model}", "--dim", "batch=1", "--dim", "batch=2"], "two numbers"),
        (["{model}", "--precompile", "own.onnx"], "'own.onnx' is a file"),
        (["{model}", "--all-devices-here"], "needs --precompile"),
        (["{model}", "-o", "-"], "--output cannot write to standard output"),
        (["{model}", "-o", "m.bin"], "a compiled model ends in .clrt"),
        (["{model}", "--to", "onnx", "-o", "m.clrt"], "a compiled model ends in .clrt"),
        (["{model}", "--to", "onnx", "-o", "m.npz"], "'m.npz' does not end in .onnx"),
        (["{model}", "--report", "page.json"], "'page.json' does not end in .html or .htm"),
    ],
)
def test_option_errors_print_message_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("own.onnx", "folder/model.onnx"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("own.onnx")
    result = _run(*(a.replace("{model}", str(model_folder())) for a in args))
    assert result.exit_code == 1
    assert message in result.stderr.replace("\n", " ")
    assert result.stderr.lstrip().startswith("Error: ")
    assert not list(tmp_path.glob("*.clrt"))


@pytest.mark.parametrize(
    "text",
    [
        "g (string[n] x) => (string[n,m] y, int64[n] z) { y,z=StringSplit(x) }",
        "g (float[n,3] x) => (seq(float[a,3]) y) { y=SplitToSequence<axis=0>(x) }",
        "g (float[2,3] x) => (optional(float[2,3]) y) { y=Optional(x) }",
    ],
)
def test_verify_compares_strings_sequences_and_optionals(tmp_path: Path, text: str) -> None:
    source, inputs = tmp_path / "m.onnx", tmp_path / "x.npz"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>{text}'), source)
    x = np.array(["a b", "c"]) if "string" in text else np.ones((2, 3), np.float32)
    np.savez(inputs, x=x)
    result = _run(source, "-o", tmp_path / "m.clrt", "--verify", "--inputs", inputs)
    assert result.exit_code == 0, result.output


def test_conversion_warns_if_no_weight_shrinks(tmp_path: Path) -> None:
    source, narrow, again = (tmp_path / n for n in ("m.onnx", "narrow.clrt", "again.clrt"))
    source.write_bytes(load_family(FAMILIES[0]).SerializeToString())
    result = _run(source, "-o", narrow, "--precision", "float16")
    assert "No weight became" not in result.stderr
    result = _run(narrow, "-o", again, "--quantize", "int8")
    assert "No weight became int8" in result.stderr


def test_sequence_input_model_converts_without_shapes(tmp_path: Path) -> None:
    text = "g (seq(float[a,3]) q) => (float[b,3] y) { y=ConcatFromSequence<axis=0>(q) }"
    source = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>{text}'), source)
    assert _run(source, "-o", tmp_path / "m.clrt").exit_code == 0
    with clrt.load(tmp_path / "m.clrt") as model:
        assert model.run({"q": [np.ones((2, 3), np.float32)] * 2})["y"].shape == (4, 3)


def test_unsupported_encoder_modules_are_named(tmp_path: Path) -> None:
    folder = tiny.make_folder(tmp_path)
    listed = json.loads((folder / "modules.json").read_text("utf-8"))
    listed.append({"path": "2_CNN", "type": "sentence_transformers.models.CNN"})
    (folder / "modules.json").write_text(json.dumps(listed), "utf-8")
    settings, trouble = read_encoder(folder)
    assert settings is None and "Transformer -> Pooling -> CNN" in (trouble or "")
    settings, trouble = read_encoder(model_folder())
    assert settings is not None and trouble is None


def test_onnx_file_is_found_in_transformer_subfolder(tmp_path: Path) -> None:
    inner = tmp_path / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.onnx"):
        (inner / name).write_text("{}")
    assert onnx_file(tmp_path) == inner / "model.onnx"


def test_sentence_encoder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "m.clrt"
    source.write_bytes(load_family(FAMILIES[0]).SerializeToString())
    assert _run(source, "-o", target).exit_code == 0
    with pytest.raises(ModelError, match="contains no tokenizer; convert the model's folder"):
        clrt.SentenceEncoder(target)


def test_report_tables_keep_full_names_in_narrow_terminal() -> None:
    shrunk = WeightCompression(
        "a_weight_with_a_name_of_its_own", (384, 384), "int8", 9, 3, 0.1, 0.2
    )
    difference = Difference("an_output_with_a_name_of_its_own", (1, 128, 384), 0.1, 0.2, 0.9)
    for table in (
        convert_report.weight_table([shrunk]),
        convert_report.difference_table([difference], 0.1),
    ):
        console = Console(width=60, file=io.StringIO())
        console.print(table)
        lines = console.file.getvalue().splitlines()
        name = "".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))
        assert name in (shrunk.name, difference.name)


def test_help_lists_options_and_usage_errors_exit_2() -> None:
    text = _run("--help").output
    for word in ("--precision", "--quantize", "--verify", "--install-completion", "Exit codes"):
        assert word in text
    assert "1 error in the model, a file or an option" in text
    for wrong in (["--optimize", "3"], ["--precision", "float8"], ["--nonsense"]):
        assert _run("m.onnx", *wrong).exit_code == 2


def test_verify_reports_runtime_of_original_and_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime, if installed, or the references run the original; clrt runs .clrt results."""
    source, target = tmp_path / "m.onnx", tmp_path / "m.clrt"
    source.write_bytes(load_family(FAMILIES[0]).SerializeToString())
    shown = _run(source, "-o", target, "--verify").output
    assert "sample inputs, input_ids=1x16" in shown
    assert "original by ONNX Runtime, result by clrt on " in shown
    again = _run(target, "-o", tmp_path / "again.clrt", "--verify").output
    assert "original by the references (since ONNX Runtime reads no compiled model)" in again
    exported = _run(source, "-o", tmp_path / "o.onnx", "--to", "onnx", "--verify").output
    assert "original by ONNX Runtime, result by ONNX Runtime." in exported
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name)
    )
    shown = _run(source, "-o", target, "--verify").output
    assert "original by the references (since onnxruntime is not installed)" in shown


def test_verify_detects_wrong_clrt_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If clrt ran the source as well, both sides would be wrong alike."""
    source = tmp_path / "m.onnx"
    source.write_bytes(load_family(FAMILIES[0]).SerializeToString())
    plain = clrt.Model.run

    def wrong(self: clrt.Model, *args: Any, **options: Any) -> dict[str, Any]:
        return {n: x * np.float32(1.01) for n, x in plain(self, *args, **options).items()}

    monkeypatch.setattr(clrt.Model, "run", wrong)
    assert _run(source, "-o", tmp_path / "m.clrt", "--verify").exit_code == EXIT_DIFFERS


def test_verify_compares_random_ops_with_references(tmp_path: Path) -> None:
    text = "g (float[n] x) => (float[n] y) { r=RandomNormalLike<seed=3.0>(x) y=Add(x,r) }"
    source = tmp_path / "m.onnx"
    header = '<ir_version: 8, opset_import: ["" : 17]>'
    onnx.save(onnx.parser.parse_model(f"{header} {text}"), source)
    result = _run(source, "-o", tmp_path / "m.clrt", "--verify")
    assert result.exit_code == 0, result.output
    assert "ONNX Runtime draws other random numbers" in result.output


@pytest.mark.slow
def test_int4_calibrates_on_text_and_keeps_cosine(tmp_path: Path) -> None:
    """Compared on text: made-up ids gave a cosine of 0.968 where text has 0.995.

    Calibration, comparison and precompilation all respect fixed dims.
    """
    target, programs = tmp_path / "m.clrt", tmp_path / "programs"
    dims = ("--dim", "batch=4", "--dim", "sequence=24")
    options = ("--quantize", "int4", "--verify", "--precompile", programs)
    result = _run(model_folder(), "-o", target, *dims, *options)
    assert result.exit_code == 0, result.output
    assert "Compared on text, input_ids=4x24" in result.output
    rows = [line.split("│") for line in result.output.splitlines() if "last_hidden" in line]
    assert float(rows[-1][-2]) > 0.99
    assert list(programs.iterdir())
    check_fewer_bits(target, 0.26, 0.98)


@pytest.mark.parametrize("is_given", [True, False])
def test_verify_failure_blames_inputs_only_if_clrt_chose_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_given: bool
) -> None:
    def refuse(*_: object) -> None:
        raise InputError("An id is too large.")

    monkeypatch.setattr(conversion, "compare", refuse)
    text = "g (float[n] x) => (float[n] y) { y = Add(x, x) }"
    source, feeds = tmp_path / "m.onnx", tmp_path / "in.npz"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>{text}'), source)
    np.savez(feeds, x=np.ones(2, np.float32))
    given = ("--inputs", feeds) if is_given else ()
    result = _run(source, "-o", tmp_path / "m.clrt", "--verify", *given)
    assert result.exit_code == 1 and "An id is too large." in result.stderr
    assert ("clrt chose the inputs" in result.stderr) is not is_given

"""Help, version and errors of `clrt`, and its output in a pipe."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

import clrt
from clrt.cli import convert
from clrt.cli.main import COMMANDS, app
from clrt.errors import counted
from tests.models.fixtures import load_family

LONG = "a_node_with_a_name_that_is_longer_than_any_terminal_is_wide/" * 2


def test_no_command_prints_help() -> None:
    bare, asked = CliRunner().invoke(app, []), CliRunner().invoke(app, ["--help"])
    assert bare.exit_code == asked.exit_code == 0
    assert bare.stdout == asked.stdout
    assert all(name in bare.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_summary_matches_docstring(name: str) -> None:
    function = name.replace("-", "_")
    module = importlib.import_module(f"clrt.cli.{function}")
    text = " ".join(getattr(module, function).__doc__.split())
    assert text.startswith(COMMANDS[name])
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0
    assert f"clrt {name} " in shown.stdout


def test_version_option_prints_version() -> None:
    for each in (app, convert.app):
        result = CliRunner().invoke(each, ["--version"])
        assert (result.exit_code, result.stdout) == (0, f"clrt {clrt.__version__}\n")


def test_misspelled_command_gets_suggestion() -> None:
    result = CliRunner().invoke(app, ["profle"])
    assert result.exit_code == 2
    assert "Did you mean 'profile'?" in result.output


@pytest.mark.parametrize("command", ["explain", "diff", "profile"])
def test_piped_output_is_not_truncated(command: str, tmp_path: Path) -> None:
    model = load_family("bert_torchscript17")
    for node in model.graph.node:
        node.name = f"{LONG}{node.name}"
    onnx.save(model, tmp_path / "m.onnx")
    code = "from clrt.cli.main import app; app()"
    args = [command, "m.onnx", "--shape", "input_ids=1x7", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        env=_without("COLUMNS"),
    )
    assert LONG in done.stdout
    assert "…" not in done.stdout


def _without(name: str) -> dict[str, str]:
    root = str(Path(clrt.__file__).parents[1])
    return {k: v for k, v in os.environ.items() if k != name} | {"PYTHONPATH": root}


def test_counted_pluralizes_nouns() -> None:
    assert counted(1, "node") == "1 node"
    assert counted(0, "node") == "0 nodes"
    assert counted(2, "launch", "launches") == "2 launches"


@pytest.mark.parametrize("number", ["9" * 5000, "²", "-1"])
def test_invalid_shape_dims_print_error(number: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Neg", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [info("x", 1, ["n", 2])], [info("y", 1, None)])
    onnx.save(onnx.helper.make_model(graph, ir_version=10), path)
    for command in ("explain", "profile", "bench"):
        result = CliRunner().invoke(app, [command, str(path), "--shape", f"x={number}x2"])
        assert result.exit_code == 1 and "Error: 'x=" in result.stderr, result.output


@pytest.mark.parametrize("name", ["", *COMMANDS, "clrt-convert"])
def test_help_shows_no_type_for_flags(name: str) -> None:
    asked = convert.app if name == "clrt-convert" else app
    args = [name] if name in COMMANDS else []
    shown = CliRunner().invoke(asked, [*args, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0 and "--help" in shown.stdout
    assert "bool" not in shown.stdout.lower()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["bench", "m", "--against", "foo"], "'foo' is not one of 'onnxruntime'"),
        (["transcribe", "a.wav", "-m", "m", "--format", "doc"], "'doc' is not one of 'txt'"),
        (["diff", "m", "--precision", "int4"], "'int4' is not one of 'float16'"),
        (["bench", "m", "--seconds", "-1"], "--seconds"),
    ],
)
def test_invalid_option_value_lists_choices(args: list[str], said: str) -> None:
    result = CliRunner().invoke(app, args, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert said in result.output and "Value error" not in result.output

"""Control characters in names, labels and texts of a model are escaped for terminals."""

from __future__ import annotations

import ast
import io
import json
import re
from pathlib import Path
from typing import Any

import onnx
import onnx.helper
import pytest
from PIL import Image
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

import clrt.cli
from clrt.cli import app
from clrt.cli.console import echo, json_text
from clrt.cli.convert import app as convert
from clrt.errors import CONTROLS, visible
from clrt.util.table_text import PlainText, SafeConsole
from tests.harness import quick_device
from tests.vision.small_models import classifier

EVIL = "\x1b]0;title\x07\x1b[31mred\r\b\x7f\x9b2J\u202e\u2066\u2028\udc80"
RAW = ("print", "Console", "typer.echo", "typer.secho", "sys.stdout.write")
# What is printed raw: clrt's own help, and bytes for a pipe.
ALLOWED = {
    ("main.py", "typer.echo(ctx.get_help())"),
    ("embed.py", "typer.echo(npy_bytes(vectors), nl=False)"),
}
NAME = EVIL.replace("\udc80", "")  # protobuf has no lone surrogates


def _is_clean(text: str) -> bool:
    return set(CONTROLS.findall(text)) <= {"\n", "\t"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file whose names, symbols and producer hold control characters."""
    h, path = onnx.helper, tmp_path_factory.mktemp("models") / "m.onnx"
    nodes = [
        h.make_node("Relu", [f"x{NAME}"], ["t"], name=f"node{NAME}"),
        h.make_node("Cos", ["t"], [f"y{NAME}"], name=f"two{NAME}\nlines"),
    ]
    x, y = (h.make_tensor_value_info(f"{n}{NAME}", 1, [f"N{NAME}", 4]) for n in "xy")
    graph = h.make_graph(nodes, f"g{NAME}", [x], [y])
    made = h.make_model(
        graph, opset_imports=[h.make_opsetid("", 21)], producer_name=f"maker{NAME}", ir_version=10
    )
    onnx.save(made, path)
    return path


def run(*args: str | Path) -> Any:
    given = [*map(str, args), "--device", str(quick_device().index)]
    return CliRunner().invoke(app, given, env={"COLUMNS": "400"})


@pytest.mark.parametrize(
    "command",
    [
        ("inspect",),
        ("inspect", "--json"),
        ("explain",),
        ("explain", "--json"),
        ("profile", "--repeat", "1"),
        ("bench", "--seconds", "0.1"),
        ("bench", "--seconds", "0.1", "--json"),
        ("diff",),
        ("diff", "--against", "reference"),
    ],
    ids=" ".join,
)
def test_commands_escape_control_characters_in_names(model: Path, command: tuple[str, ...]) -> None:
    result = run(command[0], model, *command[1:])
    assert result.exit_code == 0, result.output
    assert _is_clean(result.stdout + result.stderr)
    if "--json" in command:
        assert f"x{NAME}" in str_keys(json.loads(result.stdout))
    elif command[0] != "bench":
        assert visible(NAME) in re.sub(r"[│\s]", "", result.stdout)


def str_keys(value: Any) -> set[str]:
    """All keys of nested JSON objects."""
    if isinstance(value, dict):
        return set(value) | {k for v in value.values() for k in str_keys(v)}
    return {k for v in value for k in str_keys(v)} if isinstance(value, list) else set()


def test_newline_in_name_is_escaped(model: Path) -> None:
    result = run("inspect", model)
    assert "\nlines" not in result.stdout


def test_profile_page_escapes_control_characters(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("profile", model, "--repeat", "1", "--html", page).exit_code == 0
    data = re.search(r'id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert data is not None
    for text in re.findall(r'"((?:[^"\\]|\\.)*)"', data[1]):
        assert _is_clean(json.loads(f'"{text}"'))


def test_convert_escapes_control_characters_in_names(model: Path, tmp_path: Path) -> None:
    options = ["-o", str(tmp_path / "m.clrt"), "--verify", "--dump-ir", "-"]
    result = CliRunner().invoke(convert, [str(model), *options], env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    assert _is_clean(result.stdout + result.stderr) and visible(NAME) in result.stdout


def test_classify_escapes_control_characters_in_labels(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    classifier(folder)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {k: EVIL + v for k, v in config["id2label"].items()}
    (folder / "config.json").write_text(json.dumps(config))
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    shown = run("classify", "-m", folder, tmp_path / "a.png")
    assert shown.exit_code == 0 and _is_clean(shown.output) and visible(EVIL) in shown.stdout
    exact = run("classify", "-m", folder, tmp_path / "a.png", "--json")
    assert _is_clean(exact.output)
    assert all(c["label"].startswith(EVIL) for c in json.loads(exact.stdout)["classes"])


def test_echo_escapes_sequences_split_across_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    for piece in ("a\n\tb", "\x1b", "[2", "J", "\x9b", "é\u200d"):
        echo(piece, end="")
    assert capsys.readouterr().out == r"a" + "\n\tb" + r"\x1b[2J\x9bé" + "\u200d"


def test_json_text_is_clean_and_round_trips() -> None:
    value = {EVIL: [EVIL, "é\n"], "n": 1}
    for indent in (None, 1):
        text = json_text(value, indent)
        assert _is_clean(text) and json.loads(text) == value


def test_safe_console_escapes_all_renderables() -> None:
    """Escapes strings, `Text` and tables, not only `PlainText`; rich's own colours stay."""
    target = io.StringIO()
    console = SafeConsole(file=target, force_terminal=True, width=200, highlight=False)
    table = Table(title=EVIL, caption=EVIL)
    table.add_column(Text(EVIL))
    table.add_row(EVIL, style="red")
    table.add_row(Text(EVIL))
    for thing in (table, EVIL, Text(EVIL)):
        console.print(thing)
    text = re.sub(r"\x1b\[[\d;]*m", "", target.getvalue())
    assert _is_clean(text) and text != target.getvalue()


def test_table_cells_with_escaped_controls_stay_aligned() -> None:
    target = io.StringIO()
    table = Table()
    table.add_column("a")
    table.add_row(PlainText(EVIL))
    table.add_row("b")
    SafeConsole(file=target, width=200).print(table)
    assert len(set(map(len, target.getvalue().splitlines()))) == 1


def test_commands_print_only_through_safe_console() -> None:
    """Covers commands without a test of their own."""
    for path in Path(clrt.cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{a.name}" for a in node.names}
                assert not names & {"rich.text.Text", "rich.print"}, path
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                raw = called in (
                    "print",
                    "Console",
                    "typer.echo",
                    "sys.stdout.write",
                    "typer.secho",
                )
                place = path.name, ast.unparse(node)
                assert not raw or path.name == "console.py" or place in ALLOWED, place

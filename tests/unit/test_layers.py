"""Each folder imports what its line in ARCHITECTURE.md lists, and no more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "clrt"

ONLY_IN = {
    "onnx": {"importer", "exporter", "sources"},
    "pyopencl": {"runtime"},
    "tokenizers": {"text", "generation", "audio"},
    "jinja2": {"generation"},
    "llguidance": {"generation"},
    "google": {"importer"},
    "xxhash": {"container"},
    "typer": {"cli"},
    "rich": {"cli", "inspection", "printing", "profiling"},
}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{a.name}" for a in node.names)


def _files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def _layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _listed() -> dict[str, set[str]]:
    """The rows of the table in ARCHITECTURE.md that name what they import."""
    text = (ROOT.parent / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| `clrt/(\w+)[^`]*` \|.*\| (nothing|`[a-z`, ]+`) \|$", text, re.MULTILINE)
    return {layer: set(re.findall(r"`(\w+)`", imports)) for layer, imports in rows}


def _target(name: str) -> str:
    """The layer of what is imported from clrt; "clrt" for the package itself."""
    part = name.split(".")[1:2]
    is_layer = part and ((ROOT / part[0]).exists() or (ROOT / f"{part[0]}.py").exists())
    return part[0] if is_layer else "clrt"


def test_each_folder_has_a_line() -> None:
    folders = {p.parent.name for p in ROOT.glob("*/__init__.py")}
    assert folders - {"cli"} <= _listed().keys()  # cli imports everything


@pytest.mark.parametrize(("layer", "listed"), _listed().items())
def test_each_layer_imports_what_its_line_lists(layer: str, listed: set[str]) -> None:
    names = [n for p in _files() if _layer(p) == layer for n in _imports(p)]
    found = {_target(n) for n in names if n.split(".")[0] == "clrt"}
    assert found - {layer, "errors"} == listed


def test_pyopencl_has_one_door() -> None:
    """What it raises becomes an error of clrt there; the other file only replaces a function."""
    users = {p.name for p in _files() for n in _imports(p) if n.partition(".")[0] == "pyopencl"}
    assert users == {"driver.py", "invokers.py"}


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_packages_stay_in_their_layer(path: Path) -> None:
    layer = _layer(path)
    for name in _imports(path):
        top = name.partition(".")[0]
        if top in ONLY_IN and layer not in ("model", "__init__"):
            assert layer in ONLY_IN[top], name

"""Imports of each package of clrt equal its row in ARCHITECTURE.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.unit.syntax import statements

ROOT = Path(__file__).resolve().parents[2] / "clrt"

# Third-party packages, and the folders or files that import them.
ONLY_IN = {
    "onnx": {"models/onnx", "models/decoders/onnx.py", "models/sources.py"},
    "pyopencl": {"runtime/opencl/driver.py", "runtime/opencl/kernel_invokers.py"},
    "tokenizers": {"models/tokenizers", "text", "generation", "audio"},
    "jinja2": {"generation/sandbox.py"},
    "llguidance": {"generation/constraints.py"},
    "google": {"models/onnx/read.py"},
    "xxhash": {"formats/checksum.py"},
    "typer": {"cli"},
    "rich": {"cli", "runtime/inspection", "runtime/profiling", "util/table_text.py"},
}

# What the parts of the two largest entries import of each other.
INNER = {
    "models/huggingface": set(),
    "models/compiled_file": set(),
    "models/compiled": {"models/compiled_file"},
    "models/tokenizers": set(),
    "models/onnx": set(),
    "models/model_builder": set(),
    "models/decoders": {"models/huggingface", "models/model_builder", "models/onnx"},
    "models/encoders": {"models/huggingface", "models/decoders", "models/model_builder"},
    "models/locate": {"models/compiled_file", "models/huggingface"},
    "models/sources": {
        "models/compiled",
        "models/compiled_file",
        "models/decoders",
        "models/encoders",
        "models/huggingface",
        "models/onnx",
    },
    "models/as_onnx": {"models/onnx", "models/sources"},
    "runtime/opencl": set(),
    "runtime/executables": set(),
    "runtime/execution": {"runtime/executables", "runtime/opencl"},
    "runtime/inspection": set(),
    "runtime/profiling": {"runtime/execution", "runtime/opencl"},
    "runtime/selftest": {"runtime/execution", "runtime/opencl"},
    "runtime/model": {
        "runtime/executables",
        "runtime/execution",
        "runtime/inspection",
        "runtime/opencl",
        "runtime/profiling",
        "runtime/selftest",
    },
}


# Modules of the classes that make up a Model.
MODEL_MODULES = ("model", "planned_model", "pickling")


def _private_model_names() -> set[str]:
    """Returns the names of private attributes and methods of a Model."""
    names: set[str] = set()
    for module in MODEL_MODULES:
        tree = ast.parse((ROOT / f"runtime/model/{module}.py").read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "model"):
                names.add(node.attr)
    return {n for n in names if re.match("_[^_]", n)}


def _imports(path: Path) -> Iterator[str]:
    for node in statements(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{a.name}" for a in node.names)


@cache
def _imports_by_file() -> dict[Path, list[str]]:
    return {path.relative_to(ROOT): list(_imports(path)) for path in sorted(ROOT.rglob("*.py"))}


def _entry(file: Path, depth: int = 1) -> str:
    return "/".join(file.parts[:depth]).removesuffix(".py")


def _target(name: str, depth: int = 1) -> str:
    """Returns the package (depth 1) or subpackage (depth 2) of an import; "clrt" for the root."""
    parts = name.split(".")[1 : depth + 1]
    while parts:
        place = ROOT.joinpath(*parts)
        if place.is_dir() or place.with_suffix(".py").exists():
            return "/".join(parts)
        parts.pop()
    return "clrt"


def _found(entry: str, depth: int = 1) -> set[str]:
    """Returns the packages or subpackages of clrt that an entry imports."""
    names = [n for f, ns in _imports_by_file().items() if _entry(f, depth) == entry for n in ns]
    return {_target(n, depth) for n in names if n.split(".")[0] == "clrt"} - {entry, "errors"}


def _rows() -> dict[str, set[str]]:
    """Returns the import table of ARCHITECTURE.md."""
    text = (ROOT.parent / "ARCHITECTURE.md").read_text("utf-8")
    pattern = r"^\| `clrt/(\w+)[^`]*` \|.*\| (nothing|`[a-z_`, ]+`) \|$"
    rows = re.findall(pattern, text, re.MULTILINE)
    return {entry: set(re.findall(r"`(\w+)`", imports)) for entry, imports in rows}


def test_architecture_table_lists_every_package() -> None:
    entries = {_entry(f) for f in _imports_by_file()} - {"__init__", "__main__"}
    assert _rows().keys() == entries
    assert len(list(ROOT.glob("[!_]*"))) + 2 <= 26


def test_listed_imports_have_no_cycle() -> None:
    rows = {entry: imports - {"clrt"} for entry, imports in _rows().items()}
    for graph in (rows, INNER):
        list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize(("entry", "listed"), _rows().items())
def test_package_imports_match_architecture_table(entry: str, listed: set[str]) -> None:
    assert _found(entry) == listed


@pytest.mark.parametrize(("part", "listed"), INNER.items())
def test_models_and_runtime_parts_import_as_listed(part: str, listed: set[str]) -> None:
    entry = part.split("/")[0]
    assert {t for t in _found(part, depth=2) if t.startswith(f"{entry}/")} == listed


def test_opencl_runtime_imports_no_plan_or_ops() -> None:
    assert not {t for t in _found("runtime/opencl", depth=2) if t.split("/")[0] in ("plan", "ops")}


def test_ops_import_only_decomposition_registry() -> None:
    """Op files import only the registry; users of decompositions load them."""
    for file, names in _imports_by_file().items():
        if file.parts[:2] == ("ops", "decompositions") or file.parts[0] != "ops":
            continue
        found = {n.split(".")[3] for n in names if n.startswith("clrt.ops.decompositions.")}
        assert found <= {"registry"}, file


def test_third_party_packages_are_imported_only_by_owners() -> None:
    for file, names in _imports_by_file().items():
        for name in names:
            owners = ONLY_IN.get(name.partition(".")[0])
            if owners is not None:
                assert any(file.is_relative_to(owner) for owner in owners), (str(file), name)


def test_no_package_but_runtime_reads_private_attributes_of_models() -> None:
    private = _private_model_names()
    assert {"_runner", "_graph", "_session", "_signature"} <= private
    for file in _imports_by_file():
        if file.parts[0] == "runtime":
            continue
        text = (ROOT / file).read_text("utf-8")
        if not any(name in text for name in private):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr in private:
                assert ast.unparse(node.value) == "self", f"{file}:{node.lineno}"

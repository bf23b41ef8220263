"""Imports between modules have no cycle."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.unit.syntax import statements

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("clrt", "examples", "tests", "tools")


def _files() -> list[Path]:
    found = (p for f in FOLDERS for p in (ROOT / f).rglob("*.py"))
    return sorted(p for p in found if "__pycache__" not in p.parts)


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_type_check(node: ast.AST) -> bool:
    """Returns whether only type checkers read what is in a statement."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _imported(path: Path, modules: set[str]) -> set[str]:
    """Returns the modules of this repository that a file imports, in functions too."""
    package = _module(path).split(".")[: None if path.stem == "__init__" else -1]
    found: set[str] = set()
    for node in statements(ast.parse(path.read_text("utf-8")), _is_type_check):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            inner = {f"{origin}.{a.name}" for a in node.names} & modules
            found |= inner or {origin}
    return found & modules


def test_imports_have_no_cycle() -> None:
    modules = {_module(p): p for p in _files()}
    graph = {m: _imported(p, set(modules)) for m, p in modules.items()}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in sorted(graph[module] - {module}):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())

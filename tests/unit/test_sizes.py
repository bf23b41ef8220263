"""Units are small enough to read at once; no circle of imports, no block or class name twice."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("clrt", "examples", "kernels_cl", "tests", "tools")
SOURCES = (".py", ".cl", ".clh", ".inc")

MOST_LINES = {"function": 80, "class": 300, "file": 450}
BLOCK_LINES = 6


@cache
def _files(*endings: str) -> list[Path]:
    found = (p for f in FOLDERS for p in (ROOT / f).rglob("*") if p.suffix in endings)
    return sorted(p for p in found if "__pycache__" not in p.parts)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


class Facts(NamedTuple):
    """What the tests need of a Python file; its syntax tree would take ten times the memory.

    Attributes:
        units: Kind, name, first line and number of lines of each class and function.
        imports: Level, module and names of each import that is executed, also in functions.
        skipped: The lines of imports, and of overloads, which repeat a signature by their nature.
    """

    units: list[tuple[str, str, int, int]]
    imports: list[tuple[int, str, tuple[str, ...]]]
    skipped: set[int]


@cache
def _facts(path: Path) -> Facts:
    facts = Facts([], [], set())
    if path.suffix != ".py":
        return facts
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            lines = range(node.lineno, (node.end_lineno or 0) + 1)
            facts.units.append((kind, node.name, node.lineno, len(lines)))
            if "overload" in map(ast.unparse, node.decorator_list):
                facts.skipped.update(lines)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            facts.skipped.update(range(node.lineno, (node.end_lineno or 0) + 1))
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            facts.imports.append((0, "", tuple(a.name for a in node.names)))
        elif isinstance(node, ast.ImportFrom):
            names = tuple(a.name for a in node.names)
            facts.imports.append((node.level, node.module or "", names))
    return facts


def _units() -> Iterator[tuple[str, str, int]]:
    """Kind, name and lines of each file, class and function."""
    for path in _files(*SOURCES):
        yield "file", _name(path), len(path.read_text("utf-8").splitlines())
        for kind, name, _, lines in _facts(path).units:
            yield kind, f"{_name(path)}:{name}", lines


def test_no_unit_is_too_large() -> None:
    assert {name: n for kind, name, n in _units() if n > MOST_LINES[kind]} == {}


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path, modules: set[str]) -> set[str]:
    """The modules that a file imports, in functions too, but for what only type checkers read."""
    package = _module(path).split(".")[: None if path.stem == "__init__" else -1]
    found: set[str] = set()
    for level, module, names in _facts(path).imports:
        if not level and not module:
            found |= set(names)
            continue
        base = package[: len(package) - level + 1] if level else []
        origin = ".".join([*base, *([module] if module else [])])
        inner = {f"{origin}.{name}" for name in names} & modules
        found |= inner or {origin}
    return found & modules


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    for child in ast.iter_child_nodes(node):
        yield from _executed(child)


def test_no_module_imports_itself() -> None:
    modules = {_module(p): p for p in _files(".py")}
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


def test_no_two_classes_have_one_name() -> None:
    """With or without an underscore in front."""
    classes: dict[str, list[str]] = defaultdict(list)
    for path in _files(".py"):
        for kind, name, line, _ in _facts(path).units if path.is_relative_to(ROOT / "clrt") else ():
            if kind == "class":
                classes[name.strip("_")].append(f"{_name(path)}:{line}")
    assert {name: places for name, places in classes.items() if len(places) > 1} == {}


def _lines(path: Path) -> list[tuple[int, str]]:
    """Number and text of the lines that say something."""
    thin = r"#" if path.suffix == ".py" else r"//|#include|#else|#endif"
    skipped = _facts(path).skipped
    numbered = enumerate(path.read_text("utf-8").splitlines(), start=1)
    texts = ((k, " ".join(line.split())) for k, line in numbered if k not in skipped)
    return [(k, t) for k, t in texts if re.search(r"\w", t) and not re.match(thin, t)]


def test_no_block_stands_twice() -> None:
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path in _files(*SOURCES):
        lines = _lines(path)
        for start in range(len(lines) - BLOCK_LINES + 1):
            block = lines[start : start + BLOCK_LINES]
            places[tuple(t for _, t in block)].append((_name(path), block[0][0]))
    twice = [p for p in places.values() if len(p) > 1]
    assert twice == []

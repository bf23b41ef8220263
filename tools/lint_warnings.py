"""Warns of code that is long, repeated or ambiguously named: a reader's judgement decides.

    python tools/lint_warnings.py

Prints one line for each function, class or file above its limit, each block of lines that stands
twice, and each class name in clrt that two classes bear. Exits 0: limits that fail a build bend the
code towards them.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("clrt", "examples", "kernels_cl", "tests", "tools")
SUFFIXES = (".py", ".cl", ".clh", ".inc")
MAX_LINES = {"function": 80, "class": 300, "file": 450}
# Consecutive lines, less imports, comments and lines without a word, that count as repeated.
BLOCK_LINES = 6


class Unit(NamedTuple):
    """A function, class or file and its length."""

    kind: str
    name: str
    line: int
    num_lines: int


class SourceFile(NamedTuple):
    """A file's text, its units, and the numbers of lines that repeat by their nature."""

    name: str
    lines: list[str]
    units: list[Unit]
    skipped: set[int]


def read(path: Path) -> SourceFile:
    """Returns a source file under the root, parsed if it is Python."""
    text = path.read_text("utf-8")
    lines, name = text.splitlines(), path.relative_to(ROOT).as_posix()
    file = SourceFile(name, lines, [Unit("file", name, 1, len(lines))], set())
    for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            span = range(node.lineno, (node.end_lineno or 0) + 1)
            file.units.append(Unit(kind, node.name, node.lineno, len(span)))
            if "overload" in map(ast.unparse, node.decorator_list):
                file.skipped.update(span)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            file.skipped.update(range(node.lineno, (node.end_lineno or 0) + 1))
    return file


def long_units(files: list[SourceFile]) -> Iterator[str]:
    """Yields a warning for each unit above its limit of lines."""
    for file in files:
        for kind, name, line, count in file.units:
            if count > MAX_LINES[kind]:
                yield f"{file.name}:{line}: {kind} {name} has {count} lines of {MAX_LINES[kind]}"


def repeated_blocks(files: list[SourceFile]) -> Iterator[str]:
    """Yields a warning for each block of `BLOCK_LINES` lines that stands more than once."""
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for file in files:
        thin = r"#" if file.name.endswith(".py") else r"//|#include|#else|#endif"
        told = [
            (k, text)
            for k, line in enumerate(file.lines, start=1)
            if k not in file.skipped
            and re.search(r"\w", text := " ".join(line.split()))
            and not re.match(thin, text)
        ]
        for start in range(len(told) - BLOCK_LINES + 1):
            block = told[start : start + BLOCK_LINES]
            places[tuple(text for _, text in block)].append(f"{file.name}:{block[0][0]}")
    for found in places.values():
        if len(found) > 1:
            yield f"{found[0]}: {BLOCK_LINES} lines that stand at {', '.join(found[1:])} too"


def ambiguous_classes(files: list[SourceFile]) -> Iterator[str]:
    """Yields a warning for each name of several classes, with or without an underscore in front."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for kind, name, line, _ in file.units if file.name.startswith("clrt/") else ():
            if kind == "class":
                places[name.strip("_")].append(f"{file.name}:{line}")
    for name, found in places.items():
        if len(found) > 1:
            yield f"{found[0]}: class {name} has the name of those at {', '.join(found[1:])}"


def main() -> None:
    """Prints all warnings."""
    paths = sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*") if p.suffix in SUFFIXES)
    files = [read(p) for p in paths if "__pycache__" not in p.parts]
    for check in (long_units, repeated_blocks, ambiguous_classes):
        for warning in check(files):
            print(f"warning: {warning}")


if __name__ == "__main__":
    main()

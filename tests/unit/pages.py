"""Code blocks of documentation pages as runnable programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A language, perhaps the file that the text is of, and the text.
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# `sh` blocks are commands of clrt, of which each line is run; `console` ones are not run. Each page
# has names of its own, and all have one process: importing clrt takes longer than most pages.
RUNNER = """
import shlex
from clrt.cli import convert, main

def sh(line):
    command, *args = shlex.split(line, comments=True)
    try:
        (convert.app if command == "clrt-convert" else main.app)(args)
    except SystemExit as end:
        assert not end.code, line

for name, text in PAGES:
    exec(compile(text, name, "exec"), {"sh": sh})
"""


def blocks(path: Path, *languages: str) -> list[tuple[str, str, str]]:
    """Returns language, file and text of a page's code blocks, in order."""
    return [b for b in BLOCK.findall(path.read_text("utf-8")) if b[0] in languages]


def program(pages: Iterable[Path]) -> str:
    """Returns a program that runs the code of pages."""
    texts = []
    for page in pages:
        parts = [
            text if language == "python" else "".join(f"sh({x!r})\n" for x in text.splitlines())
            for language, _, text in blocks(page, "python", "sh")
        ]
        texts.append((page.name, "\n".join(parts)))
    return f"PAGES = {texts!r}\n{RUNNER}"


def run(folder: Path, *args: str, root: Path = ROOT) -> str:
    """Runs Python in a folder with clrt from `root`; returns its output, asserts success."""
    done = subprocess.run(
        [sys.executable, *args],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

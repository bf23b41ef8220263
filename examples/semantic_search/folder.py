"""Lists the text files of a folder, with their sizes and modification times."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .problems import os_problem

PLAIN = frozenset({".txt", ".text", ".log", ".rst", ".org", ".adoc", ".tex"})
MARKDOWN = frozenset({".md", ".markdown"})
HTML = frozenset({".html", ".htm", ".xhtml"})
PDF = frozenset({".pdf"})
SUFFIXES = PLAIN | MARKDOWN | HTML | PDF


@dataclass(frozen=True)
class Stamp:
    """Size and modification time, by which changed files are found.

    Attributes:
        size: Size in bytes.
        modified_ns: Modification time in ns since 1970.
    """

    size: int
    modified_ns: int


@dataclass(frozen=True)
class Entry:
    """A text file, or a folder that cannot be listed.

    Attributes:
        path: Relative to the folder that is searched.
        stamp: Size and modification time of a file; None for a folder.
        problem: Why the folder cannot be listed, "" for a file.
    """

    path: str
    stamp: Stamp | None
    problem: str = ""


def scan(root: Path) -> Iterator[Entry]:
    """Lists the text files below a folder, sorted by name.

    Links are followed, each folder is visited once, and hidden files and folders are left out.

    Args:
        root: An existing folder.

    Raises:
        OSError: The folder itself cannot be listed.
    """
    os.scandir(root).close()
    visited: set[tuple[int, int]] = set()
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            identity = os.stat(root / folder)
            if (key := (identity.st_dev, identity.st_ino)) in visited:
                continue
            visited.add(key)
            names = sorted(n for n in os.listdir(root / folder) if not n.startswith("."))
        except FileNotFoundError:
            continue  # it vanished
        except OSError as error:
            yield Entry(folder, None, str(os_problem(error)))
            continue
        below: list[str] = []
        for name in names:
            path = os.path.join(folder, name)
            try:
                status = os.stat(root / path)
            except OSError:
                continue  # it vanished, or it is a link to nowhere or to itself
            if stat.S_ISDIR(status.st_mode):
                below.append(path)
            elif stat.S_ISREG(status.st_mode) and Path(name).suffix.lower() in SUFFIXES:
                yield Entry(path, Stamp(status.st_size, status.st_mtime_ns))
        waiting += reversed(below)

"""Tables as text: how wide they are, and in which letters."""

from __future__ import annotations

import codecs
import io
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

# In less, tables would lose columns. Lines that a terminal wraps are complete.
_LEAST = 80
# A pipe or a file has no width: no table is ever this wide, so nothing is cut.
_NO_EDGE = 1 << 16


def table_width(terminal: int | None = None) -> int:
    """Columns for tables: those of the terminal (or COLUMNS), else as many as the tables need.

    Args:
        terminal: Columns of the terminal that they go to; None asks for that of standard output.
    """
    columns = terminal or shutil.get_terminal_size((_NO_EDGE, 0)).columns
    return max(columns, _LEAST)


def output_encoding() -> str:
    """The encoding of standard output: UTF-8 but in pipes of Windows, and where it is asked for."""
    return codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name


def fitting(text: str) -> str:
    """Text in letters that standard output has; `?` stands for others."""
    encoding = output_encoding()
    return text.encode(encoding, "replace").decode(encoding)


class _Text(io.StringIO):
    """Text for standard output: rich draws the lines of tables in letters that it has."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return output_encoding()


def table_text(*parts: RenderableType) -> str:
    """Tables as plain text that standard output takes."""
    from rich.console import Console

    target = _Text()
    console = Console(file=target, width=table_width(), color_system=None, highlight=False)
    for part in parts:
        console.print(part)
    return fitting(target.getvalue().rstrip("\n"))

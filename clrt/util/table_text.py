"""Tables and other text for people: width, encoding, and no control characters of a model's."""

from __future__ import annotations

import codecs
import io
import shutil
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from clrt.errors import visible

# In less, tables would lose columns. Lines that a terminal wraps are complete.
_LEAST = 80
# A pipe or a file has no width: no table is ever this wide, so nothing is cut.
_NO_EDGE = 1 << 16


class PlainText(Text):
    """rich's `Text` without markup, with the control characters of its text made visible.

    Tables measure a cell before the console prints it, so a cell that may hold control characters
    is escaped when it is made.

    Args:
        lines: Whether newlines and tabs stay; names of a model have none.
    """

    def __init__(
        self, text: str = "", style: Any = "", *, lines: bool = False, **options: Any
    ) -> None:
        super().__init__(visible(text, lines), style, **options)

    @classmethod
    def stacked(cls, *parts: str) -> PlainText:
        """A cell with a line for each part."""
        return cls("\n".join(map(visible, parts)), lines=True)


class SafeConsole(Console):
    """rich's `Console`; control characters in what it prints become visible escapes.

    Styles and the cursor movements of progress bars are rich's own, and stay.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As `Console.render`, with the text of each segment made visible."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text, lines=True), style)

    def render_str(self, text: str, **options: Any) -> Text:
        """As `Console.render_str`; titles of tables and other strings come through it."""
        return super().render_str(visible(text, lines=True), **options)


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
    target = _Text()
    console = SafeConsole(file=target, width=table_width(), color_system=None, highlight=False)
    for part in parts:
        console.print(part)
    return fitting(target.getvalue().rstrip("\n"))

"""Tables and other text for terminals: width, encoding, and escaping of control characters."""

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

# Minimum width of tables in columns. In less, tables would lose columns; a terminal wraps longer
# lines without loss.
_MIN_WIDTH = 80
# Width in columns if the output is a pipe or a file: wider than any table, so nothing is cut.
_UNLIMITED_WIDTH = 1 << 16


class PlainText(Text):
    """rich's `Text` without markup, with control characters escaped.

    The constructor escapes: tables measure a cell before the console prints it.

    Args:
        text: The text.
        style: rich's style of the text.
        lines: Whether newlines and tabs are kept.
        options: Other arguments of rich's `Text`.
    """

    def __init__(
        self, text: str = "", style: Any = "", *, lines: bool = False, **options: Any
    ) -> None:
        super().__init__(visible(text, lines), style, **options)

    @classmethod
    def stacked(cls, *parts: str) -> PlainText:
        """Returns a table cell with one line per string."""
        return cls("\n".join(map(visible, parts)), lines=True)


class SafeConsole(Console):
    """rich's `Console` that escapes control characters in the text that it prints.

    Control characters that rich itself adds, for styles and progress bars, are not escaped.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Renders an object like `Console.render`, with control characters in its text escaped."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text, lines=True), style)

    def render_str(self, text: str, **options: Any) -> Text:
        """Renders a string, such as a table title, with control characters escaped."""
        return super().render_str(visible(text, lines=True), **options)


def table_width(terminal: int | None = None) -> int:
    """Returns the width of tables in characters: the width of the terminal, but at least 80.

    Args:
        terminal: Width of the terminal in characters; None for the width of standard output, which
            is unlimited for a pipe or a file. The environment variable COLUMNS overrides the width
            of standard output.
    """
    columns = terminal or shutil.get_terminal_size((_UNLIMITED_WIDTH, 0)).columns
    return max(columns, _MIN_WIDTH)


def output_encoding() -> str:
    """Returns the normalized name of standard output's encoding; "utf-8" if it has none."""
    return codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name


def fitting(text: str) -> str:
    """Replaces characters of `text` that standard output's encoding lacks by `?`."""
    encoding = output_encoding()
    return text.encode(encoding, "replace").decode(encoding)


class _EncodedBuffer(io.StringIO):
    """A text buffer with standard output's encoding, by which rich chooses its box characters."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return output_encoding()


def table_text(*parts: RenderableType) -> str:
    """Returns tables and other rich objects as plain text in standard output's encoding."""
    target = _EncodedBuffer()
    console = SafeConsole(file=target, width=table_width(), color_system=None, highlight=False)
    for part in parts:
        console.print(part)
    return fitting(target.getvalue().rstrip("\n"))

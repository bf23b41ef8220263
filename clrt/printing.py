"""The width of tables printed as text."""

from __future__ import annotations

import shutil

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

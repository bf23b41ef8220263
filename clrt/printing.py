"""How wide tables may be where they are printed as text."""

from __future__ import annotations

import shutil

# Tables lose columns in fewer; lines that a terminal wraps are whole.
_LEAST = 80
# What reads a pipe or a file has no edge: nothing is cut there, and no table is ever as wide.
_NO_EDGE = 1 << 16


def table_width(terminal: int | None = None) -> int:
    """Columns for tables: those of the terminal (or COLUMNS), else as many as they need.

    Args:
        terminal: Columns of the terminal that they go to; None asks for that of standard output.
    """
    columns = terminal or shutil.get_terminal_size((_NO_EDGE, 0)).columns
    return max(columns, _LEAST)

"""What commands print, for people and for programs."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def stdout() -> Console:
    """The console for results."""
    return Console(highlight=False)


def stderr() -> Console:
    """The console for everything that is no result."""
    return Console(stderr=True, highlight=False)


def say_error(message: str) -> None:
    """Prints an error in red; wraps only where the terminal does."""
    stderr().print(Text(f"Error: {message}", style="red"), soft_wrap=True)

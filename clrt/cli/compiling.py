"""Tells users of a terminal that kernels are still being compiled in the background."""

from __future__ import annotations

import os

from clrt.cli.console import stderr
from clrt.util import compile_progress, env_vars
from clrt.util.table_text import PlainText

# Commands that write to the terminal all the time, so that a message would stand in their text.
_STREAMING = ("chat", "generate", "transcribe")
_told = False


def tell_of_compiling(command: str) -> None:
    """Prints one line if compiling in the background takes a while and stderr is a terminal.

    Args:
        command: Name of the command that runs.
    """
    if command not in _STREAMING and stderr().is_terminal:
        compile_progress.default_progress = _tell


def optimize_first() -> None:
    """Makes this command compile optimized programs before it runs them."""
    os.environ[env_vars.TIERS.name] = "off"


def _tell(done: int, total: int) -> None:
    """Prints the first progress message of the process."""
    global _told
    if not _told and done < total:
        _told = True
        text = f"{compile_progress.progress_text(done, total)}; runs are slower until then"
        stderr().print(PlainText(text), soft_wrap=True)

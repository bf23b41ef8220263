"""Output of the commands, for people and for programs."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TextIO, cast

import typer
from rich.console import Console
from rich.text import Text

import clrt
from clrt.errors import ClrtError
from clrt.printing import fitting, output_encoding, table_width

Args = ParamSpec("Args")

# A comparison was made, and the difference is too large; 2 means wrong options, by convention.
EXIT_DIFFERS = 3
# The file name that means standard output.
STDOUT = Path("-")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"clrt {clrt.__version__}")
        raise typer.Exit()


VersionOption = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
]


def stdout() -> Console:
    """The console for results."""
    return _console(stderr=False)


def stderr() -> Console:
    """The console for everything but results."""
    return _console(stderr=True)


class _Fitting:
    """A stream for people, of an encoding that lacks letters, such as a pipe of Windows.

    What is for programs goes through `typer.echo`, which changes nothing.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(fitting(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _console(stderr: bool) -> Console:
    """A console as wide as its tables need: a pipe has no width."""
    narrow = not stderr and output_encoding() != "utf-8"
    file = cast("TextIO", _Fitting(sys.stdout)) if narrow else None
    console = Console(file=file, stderr=stderr, highlight=False)
    console.width = table_width(console.width if console.is_terminal else None)
    return console


def clear_errors(command: Callable[Args, None]) -> Callable[Args, None]:
    """Makes one red line and exit code 1 of errors that clrt raises on purpose, of failed writes to
    standard output, and of missing memory.

    A warning becomes a yellow line, without the source line that Python prints.
    """

    @functools.wraps(command)
    def run(*args: Args.args, **kwargs: Args.kwargs) -> None:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                command(*args, **kwargs)
        except ClrtError as error:
            say_error(str(error))
        except MemoryError as error:
            say_error(f"The memory of this machine does not suffice ({error}); take less at once.")
        except BrokenPipeError:  # who reads the output has seen enough
            raise
        except OSError as error:
            say_error(f"{error.strerror or error}: {error.filename or 'the output'}.")
        except UnicodeEncodeError as error:
            letter = ascii(error.object[error.start])
            say_error(
                f"The output's encoding, {error.encoding}, has no {letter}; set "
                "PYTHONIOENCODING=utf-8."
            )
        else:
            return
        raise typer.Exit(1)

    return run


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    stderr().print(Text(f"Warning: {message}", style="yellow"), soft_wrap=True)


def say_error(message: str) -> None:
    """Prints an error in red; wraps only where the terminal does."""
    stderr().print(Text(f"Error: {message}", style="red"), soft_wrap=True)

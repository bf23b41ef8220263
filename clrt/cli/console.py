"""Output of the commands, for people and for programs."""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TextIO, TypeVar, cast

import typer

import clrt
from clrt.errors import CONTROLS, ClrtError, InputError, visible
from clrt.util.table_text import PlainText, SafeConsole, fitting, output_encoding, table_width

Args = ParamSpec("Args")
Value = TypeVar("Value")

# A comparison was made, and the difference is too large; 2 means wrong options, by convention.
EXIT_DIFFERS = 3
# The file name that means standard output.
STDOUT = Path("-")
# File names of HTML pages.
PAGE_SUFFIXES = (".html", ".htm")
# Of every command: -h is --help.
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


def _show_version(asked: bool) -> None:
    if asked:
        echo(f"clrt {clrt.__version__}")
        raise typer.Exit()


VersionOption = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
]


def stdout() -> SafeConsole:
    """The console for results."""
    return _console(stderr=False)


def stderr() -> SafeConsole:
    """The console for everything but results."""
    return _console(stderr=True)


class _Fitting:
    """A stream for people, of an encoding that lacks letters, such as a pipe of Windows.

    Output for programs goes through `echo` and `echo_json`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(fitting(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _console(stderr: bool) -> SafeConsole:
    """A console as wide as its tables need: a pipe has no width."""
    narrow = not stderr and output_encoding() != "utf-8"
    file = cast("TextIO", _Fitting(sys.stdout)) if narrow else None
    console = SafeConsole(file=file, stderr=stderr, highlight=False)
    console.width = table_width(console.width if console.is_terminal else None)
    return console


def echo(text: str = "", end: str = "\n") -> None:
    """Prints text at once, with its control characters but newlines and tabs made visible.

    It may be a part of a stream: each character is escaped for itself, so an escape sequence that
    is split over parts is found as well.
    """
    sys.stdout.write(visible(text, lines=True) + end)
    sys.stdout.flush()


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in letters that standard output has, with control characters as `\\u…`.

    Strings read back are exactly those of `value`.
    """
    text = json.dumps(value, ensure_ascii=output_encoding() != "utf-8", indent=indent)
    # json escapes C0 alone; outside strings it has no control characters but these newlines.
    return CONTROLS.sub(lambda m: m[0] if m[0] == "\n" else f"\\u{ord(m[0]):04x}", text)


def echo_json(value: Any, indent: int | None = None) -> None:
    """Prints a value as JSON."""
    echo(json_text(value, indent))


def renamed(old: str, old_value: Value | None, new: str, value: Value | None) -> Value | None:
    """Returns the value of an option that has a new name; the old one is taken with a warning.

    Raises:
        InputError: Both are given.
    """
    if old_value is None:
        return value
    if value is not None:
        raise InputError(f"{old} is the old name of {new}; give one of them.")
    _show_warning(f"{old} is now called {new}.")
    return old_value


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
    stderr().print(PlainText(f"Warning: {message}", style="yellow", lines=True), soft_wrap=True)


def say_error(message: str) -> None:
    """Prints an error in red; wraps only where the terminal does."""
    stderr().print(PlainText(f"Error: {message}", style="red", lines=True), soft_wrap=True)

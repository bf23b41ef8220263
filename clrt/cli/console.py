"""Terminal and machine-readable output of the commands, and their errors."""

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

# Exit code of a comparison whose difference exceeds the tolerance; 2 is for usage errors.
EXIT_DIFFERS = 3
# File name that means standard output.
STDOUT = Path("-")
# Suffixes of HTML files.
PAGE_SUFFIXES = (".html", ".htm")
# Context settings of every command: -h is an alias of --help.
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
    """Returns the console for results, on standard output."""
    return _console(stderr=False)


def stderr() -> SafeConsole:
    """Returns the console for messages (progress, warnings and errors), on standard error."""
    return _console(stderr=True)


class _Fitting:
    """Stream wrapper that replaces characters that the stream's encoding cannot represent.

    Pipes on Windows may have an encoding with few characters. Use this only for text that people
    read; machine-readable output goes through `echo` and `echo_json`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(fitting(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _console(stderr: bool) -> SafeConsole:
    """Creates a console on standard output or error; on a pipe it is wide enough for any table.

    Args:
        stderr: Whether to use standard error instead of standard output.
    """
    narrow = not stderr and output_encoding() != "utf-8"
    file = cast("TextIO", _Fitting(sys.stdout)) if narrow else None
    console = SafeConsole(file=file, stderr=stderr, highlight=False)
    console.width = table_width(console.width if console.is_terminal else None)
    return console


def echo(text: str = "", end: str = "\n") -> None:
    """Prints and flushes text, with control characters except newlines and tabs escaped.

    Characters are escaped one by one, so that a stream can be printed in chunks: escape sequences
    that are split over chunks are escaped too.

    Args:
        text: Text to print.
        end: Text to print after `text`.
    """
    sys.stdout.write(visible(text, lines=True) + end)
    sys.stdout.flush()


def json_text(value: Any, indent: int | None = None) -> str:
    """Serializes a value as JSON in the encoding of standard output.

    Control characters are escaped as `\\u…`, which JSON parsers undo.

    Args:
        value: Value to serialize.
        indent: Number of spaces per nesting level; None for one line.
    """
    text = json.dumps(value, ensure_ascii=output_encoding() != "utf-8", indent=indent)
    # json escapes C0 only; outside strings its only control characters are these newlines.
    return CONTROLS.sub(lambda m: m[0] if m[0] == "\n" else f"\\u{ord(m[0]):04x}", text)


def echo_json(value: Any, indent: int | None = None) -> None:
    """Prints a value as JSON on standard output."""
    echo(json_text(value, indent))


def renamed(old: str, old_value: Value | None, new: str, value: Value | None) -> Value | None:
    """Returns the value of an option that was renamed; warns if the old name is used.

    Args:
        old: Old name of the option.
        old_value: Value under the old name; None if not set.
        new: New name of the option.
        value: Value under the new name; None if not set.

    Returns:
        The value under either name; None if neither is set.

    Raises:
        InputError: Both names are set.
    """
    if old_value is None:
        return value
    if value is not None:
        raise InputError(f"{old} is the old name of {new}; give one of them.")
    _show_warning(f"{old} is now called {new}.")
    return old_value


def clear_errors(command: Callable[Args, None]) -> Callable[Args, None]:
    """Decorates a command to print expected errors as one red line and exit with code 1.

    Expected errors are ClrtError, failed reads and writes, lack of memory, and text that the
    output's encoding lacks. Warnings are printed as a yellow line, without the source line that
    Python prints.
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
        except BrokenPipeError:  # The reader of the pipe has closed it; click handles this.
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
    """Prints an error in red on standard error, without inserting line breaks."""
    stderr().print(PlainText(f"Error: {message}", style="red", lines=True), soft_wrap=True)

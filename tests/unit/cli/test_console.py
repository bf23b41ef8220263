"""Errors of clrt and of the output stream print one line and exit 1; warnings print one line."""

from __future__ import annotations

import errno
import os

import pytest
import typer

from clrt.cli.console import clear_errors
from clrt.errors import InputError, warn_user


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InputError("Too few."), "Error: Too few."),
        (MemoryError("9 TiB"), "memory of this machine does not suffice (9 TiB)"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device: the output."),
        (UnicodeEncodeError("ascii", "aé", 1, 2, "?"), r"ascii, has no '\xe9'; set PYTHONIO"),
    ],
)
def test_command_errors_print_one_line_and_exit_1(
    error: Exception, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @clear_errors
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as caught:
        command()
    assert caught.value.exit_code == 1
    assert message in capsys.readouterr().err


def test_warnings_print_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    clear_errors(lambda: warn_user("[2] nodes run on the host."))()
    assert capsys.readouterr().err == "Warning: [2] nodes run on the host.\n"
    with pytest.warns(UserWarning, match="as ever"):
        warn_user("as ever")


def test_broken_pipe_error_propagates() -> None:
    @clear_errors
    def command() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        command()

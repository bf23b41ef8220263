"""The command line: `clrt devices`, `clrt embed`, `clrt inspect` and so on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import typer

import clrt
from clrt.cli.console import say_error
from clrt.cli.devices import devices
from clrt.cli.embed import embed
from clrt.cli.explain import explain
from clrt.cli.inspect import inspect
from clrt.cli.tune import tune
from clrt.errors import ClrtError

Args = ParamSpec("Args")


def _clear_errors(command: Callable[Args, None]) -> Callable[Args, None]:
    """What clrt raises on purpose becomes one red line and exit code 1."""

    @functools.wraps(command)
    def run(*args: Args.args, **kwargs: Args.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except ClrtError as error:
            say_error(str(error))
            raise typer.Exit(1) from None

    return run


app = typer.Typer(
    name="clrt",
    help="Runs models on any OpenCL device.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(_clear_errors(devices))
app.command()(_clear_errors(embed))
app.command()(_clear_errors(inspect))
app.command()(_clear_errors(explain))
app.command()(_clear_errors(tune))


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"clrt {clrt.__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass

"""The command line: `clrt devices`, `clrt embed` and `clrt tune`."""

from __future__ import annotations

import typer

import clrt
from clrt.cli.console import clear_errors
from clrt.cli.devices import devices
from clrt.cli.embed import embed
from clrt.cli.tune import tune

app = typer.Typer(
    name="clrt",
    help="Runs models on any OpenCL device.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(clear_errors(devices))
app.command()(clear_errors(embed))
app.command()(clear_errors(tune))


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

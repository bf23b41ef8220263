"""The command line: the commands of `clrt`."""

from __future__ import annotations

import typer

import clrt
from clrt.cli.bench import bench
from clrt.cli.console import clear_errors
from clrt.cli.devices import devices
from clrt.cli.diff import diff
from clrt.cli.embed import embed
from clrt.cli.explain import explain
from clrt.cli.inspect import inspect
from clrt.cli.profile import profile
from clrt.cli.tune import tune

app = typer.Typer(
    name="clrt",
    help="Runs models on any OpenCL device.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (devices, embed, tune, inspect, explain, profile, bench, diff):
    app.command()(clear_errors(command))


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

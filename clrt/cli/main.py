"""Command-line entry point `clrt` and its list of commands."""

from __future__ import annotations

import importlib
from typing import Any

import typer
import typer.main

from clrt.cli.command import Command, CommandGroup
from clrt.cli.compiling import tell_of_compiling
from clrt.cli.console import HELP_OPTIONS, VersionOption, clear_errors

# Command name -> first sentence of its help, so that `clrt --help` need not import the command.
COMMANDS = {
    "run": "Run a model on the arrays of an .npz file, and write its outputs to another.",
    "cache": "Show the folder of compiled programs, plans and tuning records, and its size.",
    "devices": "List the OpenCL devices of this machine and what clrt knows about each.",
    "report-device": "Write a report about a device for the project: capabilities, self-test "
    "results, speed.",
    "transcribe": "Transcribe speech, by Whisper or a CTC model such as wav2vec2.",
    "generate": "Generate text with a language model.",
    "chat": "Chat with a language model in a terminal.",
    "perplexity": "Measure the perplexity of a text under a language model.",
    "embed": "Compute the vectors of sentences or images.",
    "classify": "Classify images.",
    "detect": "Detect objects in images, and draw boxes around them.",
    "segment": "Segment images by class, and draw the classes as colours.",
    "tune": "Measure the fastest tunables of the kernels on this device, and save them.",
    "tunables": "List the numbers that decide the speed of kernels on a device, with unit and "
    "reason.",
    "inspect": "Show a model's inputs, ops, memory and placement, without running it.",
    "explain": "Explain how a model runs: the device, kernel and memory traffic of each node.",
    "profile": "Show the time per kernel of a run on random inputs.",
    "bench": "Compare the speed of a model with another runtime's, on the same random inputs.",
    "diff": "Find the first node whose result differs from another runtime's.",
}


class _Commands(CommandGroup):
    """Command group that imports a command's module only when the command is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, text in COMMANDS.items():
            self.add_command(Command(name, help=text))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else _load(str(command.name)), rest


def _load(name: str) -> Any:
    function = name.replace("-", "_")
    module = importlib.import_module(f"clrt.cli.{function}")
    one = typer.Typer(add_completion=False)
    command = clear_errors(getattr(module, function))
    tell_of_compiling(name)
    one.command(name, cls=Command, context_settings=HELP_OPTIONS)(command)
    return typer.main.get_command(one)


app = typer.Typer(
    name="clrt",
    cls=_Commands,
    help="Runs models on any OpenCL device.",
    context_settings=HELP_OPTIONS,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(ctx: typer.Context, version: VersionOption = False) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())

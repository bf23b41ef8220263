"""The command line: the commands of `clrt`."""

from __future__ import annotations

import importlib
from typing import Any

import typer
import typer.main

from clrt.cli.command import Command, CommandGroup
from clrt.cli.console import HELP_OPTIONS, VersionOption, clear_errors

# The first sentence of each command's help: `clrt --help` shows it without importing the command.
COMMANDS = {
    "run": "Run a model on the arrays of an .npz file, and write its outputs to another.",
    "cache": "Show where clrt keeps compiled programs and records, and how large that is.",
    "devices": "List the OpenCL devices of this machine and what clrt knows about each.",
    "report-device": "Write a file about a device for the project: what it can, whether it is "
    "right, how fast.",
    "transcribe": "Turn speech into text, by Whisper or a CTC model such as wav2vec2.",
    "generate": "Let a language model go on with a text.",
    "chat": "Talk to a language model in a terminal.",
    "perplexity": "Measure how much a text surprises a language model.",
    "embed": "Turn sentences, or images, into vectors.",
    "classify": "Say what is in images.",
    "detect": "Find things in images, and draw boxes around them.",
    "segment": "Say what each pixel of images shows, and colour it.",
    "tune": "Measure which variants of the kernels are fastest on this device, and remember them.",
    "inspect": "Show what a model holds, what it needs and where it would run; nothing is run.",
    "explain": "Explain why a model runs as it does: where each node runs, by which kernel, "
    "what it moves.",
    "profile": "Show where the time of a run goes, kernel by kernel, on random inputs.",
    "bench": "Measure a model beside another runtime, in turns, on the same random inputs.",
    "diff": "Find the first node at which clrt departs from another runtime.",
}


class _Commands(CommandGroup):
    """Imports each command when it is called."""

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

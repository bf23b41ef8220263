"""`clrt perplexity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from clrt.cli.adapters import LoraOption
from clrt.cli.console import echo, echo_json, stderr
from clrt.cli.sampling import (
    CacheOption,
    ContextOption,
    LanguageModelArgument,
    open_generator,
    read_text_file,
)
from clrt.cli.shapes import DeviceOption


def perplexity(
    model: LanguageModelArgument,
    file: Annotated[Path, typer.Argument(help="UTF-8 text.")],
    stride: Annotated[
        int | None,
        typer.Option(help="Tokens from one window to the next; by default half of the context."),
    ] = None,
    lora: LoraOption = None,
    context: ContextOption = None,
    cache: CacheOption = "float32",
    device: DeviceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how much a text surprises a language model.

    It is exp of the mean negative log-likelihood of the tokens. A text longer than the context is
    read in windows; a smaller stride gives each token more before it, and takes longer.
    """
    text = read_text_file(file)
    console = stderr()
    columns = (BarColumn(), MofNCompleteColumn(), "tokens", TimeRemainingColumn())
    hidden = not console.is_terminal
    with open_generator(model, device, context, cache, lora) as generator:
        with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
            task = bar.add_task("", total=None)

            def told(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            found = generator.perplexity(text, stride, told)
        used = generator.context
    if as_json:
        line = {"file": str(file), "perplexity": found, "context": used, "stride": stride}
        echo_json(line)
    else:
        echo(f"{found:.4f}")

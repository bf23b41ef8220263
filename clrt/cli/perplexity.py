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

_LLAMA_CPP_CONTEXT = 512  # tokens, as llama-perplexity has by default


def perplexity(
    model: LanguageModelArgument,
    file: Annotated[Path, typer.Argument(help="UTF-8 text.")],
    stride: Annotated[
        int | None,
        typer.Option(help="Tokens from one window to the next; by default half of the context."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="llama.cpp",
            help="The figure of llama-perplexity: of each window the second half counts. "
            "--context is its -c, 512 by default.",
        ),
    ] = None,
    lora: LoraOption = None,
    context: ContextOption = None,
    cache: CacheOption = "float32",
    device: DeviceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how much a text surprises a language model.

    It is exp of the mean negative log-likelihood of the tokens. A text longer than the context is
    read in windows, each with the tokens in front that the tokenizer begins texts with; a smaller
    stride gives each token more before it, and takes longer.
    """
    text = read_text_file(file)
    console = stderr()
    columns = (BarColumn(), MofNCompleteColumn(), "tokens", TimeRemainingColumn())
    hidden = not console.is_terminal
    if compare is not None and context is None:
        context = _LLAMA_CPP_CONTEXT
    with open_generator(model, device, context, cache, lora) as generator:
        with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
            task = bar.add_task("", total=None)

            def told(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            found = generator.perplexity(text, stride, told, compare=compare)
        used = generator.context
    if as_json:
        line = {"file": str(file), "perplexity": found, "context": used, "stride": stride}
        echo_json({**line, "compare": compare} if compare else line)
    else:
        echo(f"{found:.4f}")

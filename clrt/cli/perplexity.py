"""The command `clrt perplexity`: measures the perplexity of a text under a language model."""

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

_LLAMA_CPP_CONTEXT = 512  # Default of llama-perplexity, in tokens.


def perplexity(
    model: LanguageModelArgument,
    file: Annotated[Path, typer.Argument(help="UTF-8 text.")],
    stride: Annotated[
        int | None,
        typer.Option(help="Tokens between window starts; by default half of the context."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="llama.cpp",
            help="Compute as llama-perplexity does: the second half of each window counts. "
            "--context is its -c, 512 by default.",
        ),
    ] = None,
    lora: LoraOption = None,
    context: ContextOption = None,
    cache: CacheOption = "float32",
    device: DeviceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the perplexity of a text under a language model.

    The perplexity is exp of the mean negative log-likelihood of the tokens. A text longer than the
    context is split into windows that begin with the tokenizer's start tokens. A smaller stride
    gives each token more preceding context, and takes longer.
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

            def advance(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            value = generator.perplexity(text, stride, advance, compare=compare)
        used = generator.context
    if as_json:
        line = {"file": str(file), "perplexity": value, "context": used, "stride": stride}
        echo_json({**line, "compare": compare} if compare else line)
    else:
        echo(f"{value:.4f}")

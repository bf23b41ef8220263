"""`clrt bench --generate`: prefill and decode speed of a language model."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Literal

import numpy as np
from rich.table import Table

from clrt.cli.compiling import optimize_first
from clrt.cli.console import echo_json, stderr, stdout
from clrt.cli.sampling import open_generator
from clrt.generation.result import TextTimings
from clrt.generation.text_generator import TextGenerator
from clrt.util.fast_dataclass import dataclass
from clrt.util.table_text import PlainText

_PROMPTS = 128, 512  # Prompt lengths of the prefill, in tokens.
_CONTEXTS = 128, 1024  # Prompt lengths before decoding, in tokens.
# Timed decode steps per measurement, of one token each.
_DECODED_TOKENS = 32


@dataclass(frozen=True)
class TextSpeed:
    """Speed of prefill or decode: the median of several runs.

    Attributes:
        what: "prefill" (processing a prompt) or "decode" (generating token by token).
        tokens: Prompt length, in tokens.
        tokens_per_s: Prompt tokens per second for prefill; generated tokens per second for decode.
        first_token_s: Seconds from the prompt to the first token; None for decode.
    """

    what: Literal["prefill", "decode"]
    tokens: int
    tokens_per_s: float
    first_token_s: float | None = None


def bench_generate(model: str, device: str | None, seconds: float, as_json: bool) -> None:
    """Measures the prefill and decode speed of a language model and prints it.

    Prompt lengths that exceed the model's context are skipped, with a note on standard error.

    Args:
        model: Path or name of the language model.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None reads CLRT_DEVICE.
        seconds: Total measuring time in seconds; each prompt length is measured at least once.
        as_json: Whether to print JSON.

    Raises:
        ClrtError: The model cannot be loaded, or a run failed.
    """
    optimize_first()
    with open_generator(model, device, None) as generator:
        speeds = measure_speeds(generator, seconds)
        name = generator.device.name
        skipped = [n for n in {*_PROMPTS, *_CONTEXTS} if not _fits(generator, n)]
    if as_json:
        echo_json({"device": name, "speeds": [asdict(s) for s in speeds]})
    else:
        stdout().print(speed_table(speeds, f"One text at a time on {name}"))
    if skipped:
        lengths = " and ".join(map(str, sorted(skipped)))
        text = f"A context of {generator.context} tokens has no room for {lengths}."
        stderr().print(PlainText(text, style="yellow"), soft_wrap=True)


def measure_speeds(generator: TextGenerator, seconds: float) -> list[TextSpeed]:
    """Measures prefill and decode speed at each prompt length that fits the model's context.

    Args:
        generator: The language model.
        seconds: Total measuring time in seconds, divided equally among the measurements; each
            prompt length is measured at least once.

    Returns:
        Prefill speeds, then decode speeds, by prompt length; [] if no prompt length fits.
    """
    prompts = [n for n in _PROMPTS if _fits(generator, n)]
    contexts = [n for n in _CONTEXTS if _fits(generator, n)]
    each = seconds / max(len(prompts) + len(contexts), 1)
    rng = np.random.default_rng(0)
    results = []
    for count in prompts:
        # A new prompt each time: the prefix cache would hold a repeated one.
        times = _repeat(lambda n=count: _run(generator, _tokens(generator, rng, n), 1), each)  # type: ignore[misc]
        first = statistics.median(t.prompt_s for t in times)
        results.append(TextSpeed("prefill", count, count / first, first))
    for count in contexts:
        prompt = _tokens(generator, rng, count)
        times = _repeat(lambda p=prompt: _run(generator, p, _DECODED_TOKENS + 1), each)  # type: ignore[misc]
        speed = statistics.median(t.tokens_per_s for t in times)
        results.append(TextSpeed("decode", count, speed))
    return results


def _fits(generator: TextGenerator, tokens: int) -> bool:
    return tokens + _DECODED_TOKENS < generator.context


def _tokens(generator: TextGenerator, rng: np.random.Generator, count: int) -> list[int]:
    return [int(x) for x in rng.integers(0, generator._model.vocabulary, count)]


def _run(generator: TextGenerator, prompt: Sequence[int], count: int) -> TextTimings:
    """Generates exactly `count` tokens, with end tokens banned, and returns the timings.

    Args:
        generator: The language model.
        prompt: Tokens of the prompt.
        count: Number of tokens to generate.
    """
    banned = dict.fromkeys(generator._model.ends, -math.inf)
    with generator.stream(
        prompt, max_new_tokens=count, temperature=0, stop=(), logit_bias=banned
    ) as stream:
        timings = stream.result.timings
    assert timings is not None
    return timings


def _repeat(run: Callable[[], TextTimings], seconds: float) -> list[TextTimings]:
    """Calls `run` once to compile and plan, then repeatedly for about `seconds`, at least once.

    Returns:
        Timings of the calls, except the first.
    """
    run()
    timings: list[TextTimings] = []
    start = time.perf_counter()
    while not timings or time.perf_counter() - start < seconds:
        timings.append(run())
    return timings


def speed_table(speeds: Sequence[TextSpeed], title: str) -> Table:
    """Returns a table with one row per prefill or decode measurement."""
    table = Table(title=PlainText(title), title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("tokens/s", "ms per token", "first token, ms"):
        table.add_column(column, justify="right", no_wrap=True)
    for speed in speeds:
        label = "prefill of" if speed.what == "prefill" else "decode at"
        first = "" if speed.first_token_s is None else f"{1e3 * speed.first_token_s:.1f}"
        rate = speed.tokens_per_s
        cells = (f"{label} {speed.tokens}", f"{rate:.1f}", f"{1e3 / rate:.2f}", first)
        table.add_row(*map(PlainText, cells))
    return table

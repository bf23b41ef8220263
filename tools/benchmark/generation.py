"""Language models: clrt on each device and other runtimes on the same files.

Each runtime is a process of its own that reads the model; they take turns, with nothing beside
them.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.progress import track

from .language_peers import (
    CONTEXTS,
    DECODE,
    PREFILL,
    PROMPTS,
    Speeds,
    genai_speeds,
    has_openvino_model,
    llama_cpp_speeds,
    openvino_speeds,
    output_of,
)
from .results import GenerationRow
from .runtimes import Runtime, is_installed
from .turns import WorkerError, call_apart, median_ratio


def measure_generation(
    models: Sequence[Path],
    llama_bench: Path | None,
    ours: Sequence[Runtime],
    turns: int,
    seconds: float,
) -> list[GenerationRow]:
    """Returns a row per model, case and runtime.

    Args:
        models: GGUF files, and folders of onnxruntime-genai's builder.
        llama_bench: llama.cpp's program; None to leave it out.
        seconds: Measuring time per process of clrt.
    """
    rows = []
    console = Console(stderr=True)
    for model in track(models, "generation", console=console):
        peers = _peers(model, llama_bench)
        found: dict[str, dict[tuple[str, int], list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        runtimes = peers | {r.name: partial(_clrt, r, model, seconds) for r in ours}
        for _, (name, measure) in product(range(turns), [*runtimes.items()]):
            if name not in runtimes:
                continue
            try:
                speeds = measure()
            except WorkerError as error:
                console.print(f"{name} is left out for {model.name}: {_last_line(error)}")
                del runtimes[name]
                found.pop(name, None)
                continue
            for case, speed in speeds.items():
                found[name][case].append(speed)
        there = [name for name in peers if name in runtimes]
        rows += [
            row
            for case in ((w, n) for w in (DECODE, PREFILL) for n in _sizes(w))
            for row in generation_rows(
                model.stem, case, {r: c[case] for r, c in found.items()}, there
            )
        ]
    return rows


def generation_rows(
    model: str, case: tuple[str, int], speeds: dict[str, list[float]], peers: Sequence[str]
) -> list[GenerationRow]:
    """Returns a row per runtime, from its tokens per second in each turn."""
    medians = {r: statistics.median(s) for r, s in speeds.items() if s}
    best = max(peers, key=lambda p: medians.get(p, 0.0), default=None)
    return [
        GenerationRow(
            model,
            *case,
            runtime,
            median,
            None if best in (None, runtime) else median_ratio(speeds[runtime], speeds[best]),
        )
        for runtime, median in medians.items()
    ]


def _sizes(what: str) -> tuple[int, ...]:
    return PROMPTS if what == PREFILL else CONTEXTS


def _peers(model: Path, llama_bench: Path | None) -> dict[str, Callable[[], Speeds]]:
    """Returns the installed runtimes that can read this model."""
    peers: dict[str, Callable[[], Speeds]] = {}
    if model.is_dir():
        if is_installed("onnxruntime_genai") and (model / "genai_config.json").is_file():
            peers["onnxruntime-genai"] = partial(call_apart, genai_speeds, model)
    elif llama_bench is not None:
        peers["llama.cpp"] = partial(llama_cpp_speeds, llama_bench, model)
    if is_installed("openvino_genai") and has_openvino_model(model):
        peers["OpenVINO GenAI"] = partial(call_apart, openvino_speeds, model)
    return peers


def _clrt(runtime: Runtime, model: Path, seconds: float) -> Speeds:
    """Measures tokens per second by `clrt bench --generate`, in a process of its own."""
    command = "from clrt.cli.main import app; app()"
    options = ("--device", runtime.device, "--seconds", str(seconds), "--json")
    arguments = [sys.executable, "-c", command, "bench", "--generate", str(model), *options]
    found = json.loads(output_of(arguments))
    return {(s["what"], s["tokens"]): s["tokens_per_s"] for s in found["speeds"]}


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]

"""Language models from GGUF files: clrt on each device beside llama.cpp's own `llama-bench`.

Each runtime is a process of its own that reads the file; they take turns. llama.cpp's threads spin:
nothing else may run beside them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from rich.progress import track

from .results import GenerationRow
from .runtimes import THREADS, Runtime
from .turns import median_ratio

Speeds: TypeAlias = "dict[tuple[str, int], float]"
LLAMA_CPP = "llama.cpp"
PREFILL, DECODE = "prefill", "decode"
# As `clrt bench --generate` has them.
_PROMPTS, _CONTEXTS, _WRITTEN = (128, 512), (128, 1024), 32


def measure_generation(
    files: Sequence[Path],
    llama_bench: Path | None,
    ours: Sequence[Runtime],
    turns: int,
    seconds: float,
) -> list[GenerationRow]:
    """A row per file, what is measured, and runtime.

    Args:
        llama_bench: llama.cpp's program; None to leave it out.
        seconds: For each process of clrt.
    """
    rows = []
    for file in track(files, "generation", console=Console(stderr=True)):
        found: dict[str, dict[tuple[str, int], list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for _ in range(turns):
            made = {} if llama_bench is None else {LLAMA_CPP: _llama_cpp(llama_bench, file)}
            made |= {r.name: _clrt(r, file, seconds) for r in ours}
            for runtime, speeds in made.items():
                for case, speed in speeds.items():
                    found[runtime][case].append(speed)
        rows += [
            GenerationRow(
                file.stem,
                what,
                tokens,
                runtime,
                statistics.median(own),
                median_ratio(own, found[LLAMA_CPP][what, tokens])
                if runtime != LLAMA_CPP and llama_bench is not None
                else None,
            )
            for what, tokens in ((w, n) for w in (DECODE, PREFILL) for n in _sizes(w))
            for runtime, cases in found.items()
            if (own := cases[what, tokens])
        ]
    return rows


def _sizes(what: str) -> tuple[int, ...]:
    return _PROMPTS if what == PREFILL else _CONTEXTS


def _clrt(runtime: Runtime, file: Path, seconds: float) -> Speeds:
    """Tokens a second by `clrt bench --generate`, in a process of its own."""
    command = "from clrt.cli.main import app; app()"
    options = ("--device", runtime.device, "--seconds", str(seconds), "--json")
    arguments = [sys.executable, "-c", command, "bench", "--generate", str(file), *options]
    found = json.loads(_output(arguments))
    return {(s["what"], s["tokens"]): s["tokens_per_s"] for s in found["speeds"]}


def _llama_cpp(program: Path, file: Path) -> Speeds:
    """The same by llama-bench: its prompts, and tokens behind so many."""
    base = [str(program), "-m", str(file), "-t", str(THREADS), "-r", "2", "-o", "json"]
    prompts = _listed(_PROMPTS), "0", "0"
    contexts = "0", str(_WRITTEN), _listed(_CONTEXTS)
    speeds: Speeds = {}
    for prompt, written, depth in (prompts, contexts):
        for row in json.loads(_output([*base, "-p", prompt, "-n", written, "-d", depth])):
            is_prefill = written == "0"
            tokens = row["n_prompt"] if is_prefill else row["n_depth"]
            speeds[PREFILL if is_prefill else DECODE, tokens] = row["avg_ts"]
    return speeds


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _output(arguments: Sequence[str]) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{arguments[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout

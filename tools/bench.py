"""Times clrt beside its peers: each runtime in a process of its own, taking short turns.

    python tools/bench.py --shapes 1x16 1x128 8x128 --json bench.json

The model is all-MiniLM-L6-v2 (float32) unless --model names an ONNX file or a folder. Medians and
ratios are printed; a ratio in one run holds better than a time on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

THREADS = os.cpu_count() or 1
TURN_SECONDS = 0.4
Forward = Callable[[dict[str, np.ndarray[Any, Any]]], object]


@dataclass(frozen=True)
class Runtime:
    """A way to run the model.

    Attributes:
        kind: "clrt" or "onnxruntime".
        device: clrt's device request.
    """

    name: str
    kind: str
    device: str = ""


@dataclass(frozen=True)
class Result:
    """Milliseconds of one runtime at one shape."""

    runtime: str
    shape: str
    median_ms: float
    best_ms: float
    ratio: float


def default_model() -> Path:
    """The folder of all-MiniLM-L6-v2 in the package that carries it."""
    from clrt.text.locate import find_model

    return Path(find_model("all-MiniLM-L6-v2"))


def _proto(path: Path) -> bytes:
    """The model as self-contained ONNX, for the peers."""
    if path.is_file():
        return path.read_bytes()
    exported = path / "onnx" / "model.onnx"
    if exported.is_file():
        return exported.read_bytes()
    from clrt.importer import huggingface

    return bytes(huggingface.inline_weights(*huggingface.build_model(path)).SerializeToString())


def make_feeds(names: list[str], batch: int, sequence: int) -> dict[str, np.ndarray[Any, Any]]:
    """Token ids, a full mask and zero types."""
    rng = np.random.default_rng(0)
    feeds = {
        "input_ids": rng.integers(1000, 20000, (batch, sequence)),
        "attention_mask": np.ones((batch, sequence), np.int64),
        "token_type_ids": np.zeros((batch, sequence), np.int64),
    }
    return {n: feeds[n] for n in names}


def _load(runtime: Runtime, path: Path) -> tuple[list[str], Forward]:
    if runtime.kind == "clrt":
        import clrt

        model = clrt.load(path, device=runtime.device, strict=True)
        return [s.name for s in model.inputs], model.run
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(
        _proto(path), options, providers=["CPUExecutionProvider"]
    )
    return [i.name for i in session.get_inputs()], lambda feeds: session.run(None, feeds)


def _worker(runtime: Runtime, path: Path, pipe: Connection) -> None:
    """Loads the model, then answers each shape with the times of one turn."""
    names, forward = _load(runtime, path)
    pipe.send("ready")
    while (shape := pipe.recv()) is not None:
        feeds = make_feeds(names, *shape)
        forward(feeds)
        times: list[float] = []
        start = time.perf_counter()
        while not times or time.perf_counter() - start < TURN_SECONDS:
            begin = time.perf_counter()
            forward(feeds)
            times.append(time.perf_counter() - begin)
        pipe.send(times)


def measure(
    runtimes: list[Runtime], path: Path, shapes: list[tuple[int, int]], turns: int
) -> list[Result]:
    """Medians over all turns; ratios are to ONNX Runtime, turn by turn."""
    spawn = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []
    for runtime in runtimes:
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_worker, args=(runtime, path, theirs), daemon=True)
        process.start()
        theirs.close()  # so that a worker that dies ends the wait for its answer
        processes.append(process)
        pipes[runtime.name] = ours
        ours.recv()
    results = []
    for shape in track(shapes, "measuring", console=Console(stderr=True)):
        times: dict[str, list[list[float]]] = {r.name: [] for r in runtimes}
        for _ in range(turns):
            for runtime in runtimes:
                pipes[runtime.name].send(shape)
                times[runtime.name].append(pipes[runtime.name].recv())
        results += [_result(r, shape, times) for r in runtimes]
    for pipe in pipes.values():
        pipe.send(None)
    for process in processes:
        process.join(10)
    return results


def _result(
    runtime: Runtime, shape: tuple[int, int], times: dict[str, list[list[float]]]
) -> Result:
    own = [statistics.median(turn) for turn in times[runtime.name]]
    peer = [statistics.median(turn) for turn in times["onnxruntime"]]
    ratio = statistics.median(a / b for a, b in zip(own, peer, strict=True))
    best = min(min(turn) for turn in times[runtime.name])
    label = f"{shape[0]}x{shape[1]}"
    return Result(runtime.name, label, statistics.median(own) * 1e3, best * 1e3, ratio)


def show(results: list[Result]) -> None:
    """Prints a row per shape, a column per runtime."""
    names = list(dict.fromkeys(r.runtime for r in results))
    table = Table(title=f"median ms (ratio to ONNX Runtime), {THREADS} threads")
    table.add_column("batch x sequence")
    for name in names:
        table.add_column(name, justify="right")
    for shape in dict.fromkeys(r.shape for r in results):
        row = {r.runtime: r for r in results if r.shape == shape}
        table.add_row(shape, *(f"{row[n].median_ms:.2f} ({row[n].ratio:.2f})" for n in names))
    Console().print(table)


def _shape(text: str) -> tuple[int, int]:
    batch, _, sequence = text.partition("x")
    return int(batch), int(sequence)


def main() -> None:
    """Parses the command line and measures."""
    import clrt

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", type=Path, help="an ONNX file or Hugging Face folder")
    parser.add_argument(
        "--shapes", nargs="+", type=_shape, default=[(1, 16), (1, 128), (8, 128), (32, 128)]
    )
    parser.add_argument("--turns", type=int, default=5, help="turns each runtime takes a shape")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    options = parser.parse_args()
    usable = [d for d in clrt.devices() if d.usable and not d.caps.simulator]
    runtimes = [Runtime("onnxruntime", "onnxruntime")]
    runtimes += [Runtime(f"clrt on {d.platform.split()[0]}", "clrt", str(d.index)) for d in usable]
    results = measure(runtimes, options.model or default_model(), options.shapes, options.turns)
    show(results)
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=2) + "\n")


if __name__ == "__main__":
    main()

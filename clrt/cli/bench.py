"""The command `clrt bench`: compares the speed of a model with another runtime's."""

from __future__ import annotations

import importlib.util
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from clrt.cli.bench_generate import bench_generate
from clrt.cli.console import echo_json, stderr, stdout
from clrt.cli.random_inputs import note_sampled, sample_inputs
from clrt.cli.shapes import DeviceOption, ModelArgument, ShapeOption, one_shape
from clrt.errors import InputError, UnsupportedError, counted
from clrt.ir.op import Array
from clrt.models.as_onnx import onnx_model
from clrt.models.locate import find_model
from clrt.runtime.model.model import load
from clrt.tools.convert import apart
from clrt.util.fast_dataclass import dataclass
from clrt.util.table_text import PlainText

# The runtimes alternate for this many rounds, so that a changing clock frequency is fair to all.
_NUM_ROUNDS = 5
# Uncounted warm-up at the start of a turn: threads wake up, and the other runtime's go to sleep.
_WARM_SECONDS = 0.05


class Peer(str, Enum):
    """Runtime that `clrt bench` compares with."""

    onnxruntime = "onnxruntime"


@dataclass(frozen=True)
class Measured:
    """Run times of one runtime.

    Attributes:
        name: Names of the runtime and the device.
        turns: For each round, the duration of each run in seconds.
    """

    name: str
    turns: tuple[tuple[float, ...], ...]

    @property
    def median_ms(self) -> float:
        return 1e3 * statistics.median(t for turn in self.turns for t in turn)

    @property
    def best_ms(self) -> float:
        return 1e3 * min(t for turn in self.turns for t in turn)

    def over(self, other: Measured) -> float:
        """Returns the run time of this runtime divided by the run time of `other`.

        Each round has a ratio of the two median run times; the result is the median of the ratios.
        """
        pairs = zip(self.turns, other.turns, strict=True)
        return statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)


def bench(
    model: ModelArgument,
    against: Annotated[Peer, typer.Option(help="The runtime to compare with.")] = (
        Peer.onnxruntime
    ),
    shape: ShapeOption = None,
    device: DeviceOption = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds to measure for.")] = 5.0,
    generate: Annotated[
        bool,
        typer.Option("--generate", help="Measure prefill and decode of a language model in clrt."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare the speed of a model with another runtime's, on the same random inputs.

    The runtimes alternate. The peer runs on the CPU with one thread per core. The machine should
    be otherwise idle.
    """
    if generate:
        if shape is not None:
            raise InputError("--generate uses its own lengths; leave out --shape.")
        bench_generate(model, device, seconds, as_json)
        return
    path = find_model(model)
    check_onnxruntime()
    with load(path, device=device, tiers=False) as loaded:
        session = open_onnxruntime(path)
        feeds = sample_inputs(loaded, one_shape(shape, loaded))
        with note_sampled():
            ours = loaded.run(feeds)
        theirs = dict(
            zip(
                [o.name for o in session.get_outputs()],
                _run_onnxruntime(session, feeds),
                strict=True,
            )
        )
        runs: list[tuple[str, Callable[[], object]]] = [
            (f"clrt on {loaded.device.name}", lambda: loaded.run(feeds)),
            (f"{against.value}, {counted(_threads(), 'thread')}", lambda: session.run(None, feeds)),
        ]
        measured = take_turns(runs, seconds)
    worst, where = largest_difference(ours, theirs)
    if as_json:
        echo_json(_as_object(measured, feeds, worst))
    else:
        console = stdout()
        console.print(result_table(measured, _title(feeds)))
        console.print(
            PlainText(f"Largest difference of the outputs: {worst:.2e} of the largest, in {where}")
        )
    if loaded.host_nodes:
        stderr().print(
            PlainText(f"{counted(len(loaded.host_nodes), 'node')} ran on the host.", style="yellow")
        )


def check_onnxruntime() -> None:
    """Checks that ONNX Runtime is installed.

    Raises:
        InputError: ONNX Runtime is not installed.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise InputError(
            "The comparison needs onnxruntime, which is not installed; install it with: pip "
            "install onnxruntime"
        )


def open_onnxruntime(model: Path) -> Any:
    """Opens an ONNX Runtime session on the CPU with one thread per core.

    Raises:
        InputError: ONNX Runtime is not installed.
        UnsupportedError: ONNX Runtime cannot load the model.
    """
    check_onnxruntime()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _threads()
    # Otherwise its threads spin during clrt's turn.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    onnx = onnx_model(model)
    source = str(onnx) if isinstance(onnx, Path) else onnx
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise UnsupportedError(f"ONNX Runtime cannot load {model}: {error}") from error


def _run_onnxruntime(session: Any, feeds: dict[str, Array]) -> list[Any]:
    try:
        return list(session.run(None, feeds))
    except Exception as error:
        raise UnsupportedError(f"ONNX Runtime cannot run this model: {error}") from error


def take_turns(
    runs: Sequence[tuple[str, Callable[[], object]]], seconds: float
) -> tuple[Measured, ...]:
    """Measures functions in alternating rounds.

    Args:
        runs: Name and function of each runtime.
        seconds: Total measuring time in seconds, for all functions and rounds; the warm-up runs
            before each measurement take additional time. Each function is measured at least once
            per round.

    Returns:
        Run times of each function, in the order of `runs`.
    """
    times: list[list[tuple[float, ...]]] = [[] for _ in runs]
    each = seconds / _NUM_ROUNDS / len(runs)
    for _ in range(_NUM_ROUNDS):
        for (_, run), turns in zip(runs, times, strict=True):
            _repeat(run, min(_WARM_SECONDS, each / 2))
            turns.append(tuple(_repeat(run, each)))
    return tuple(Measured(n, tuple(t)) for (n, _), t in zip(runs, times, strict=True))


def _repeat(run: Callable[[], object], seconds: float) -> list[float]:
    """Runs a function for about `seconds`, at least once; returns the seconds of each run."""
    times: list[float] = []
    start = time.perf_counter()
    while not times or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return times


def largest_difference(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[float, str]:
    """Returns (largest difference of any output, name of that output); (0, "none") for no outputs.

    A difference is relative to the largest element of the output. It is infinite if shapes differ,
    or if an element is finite in only one of the outputs.

    Args:
        ours: Outputs of clrt, by name.
        theirs: Outputs of the other runtime, by name.
    """
    differences = [(0.0, "none")]
    differences += [
        (apart(name, ours[name], expected).relative, name) for name, expected in theirs.items()
    ]
    return max(differences, key=lambda item: (item[0], item[1] != "none"))


def result_table(measured: Sequence[Measured], title: str) -> Table:
    """Returns a table of run times, a row per runtime, with ratios to the last runtime's times.

    Args:
        measured: Run times of each runtime.
        title: Title of the table.
    """
    table = Table(title=PlainText(title), title_justify="left")
    table.add_column("runtime", overflow="fold")
    for column in ("median ms", "best ms", "ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in measured:
        ratio = row.over(measured[-1])
        cells = (row.name, f"{row.median_ms:.2f}", f"{row.best_ms:.2f}", f"{ratio:.2f}")
        table.add_row(*map(PlainText, cells))
    return table


def _as_object(
    measured: Sequence[Measured], feeds: dict[str, Array], worst: float
) -> dict[str, Any]:
    """Returns the results of the benchmark as JSON values.

    Args:
        measured: Run times of each runtime.
        feeds: Inputs of the model.
        worst: Largest difference between the outputs; null in the result if it is not finite.
    """
    rows = [
        {"name": m.name, "median_ms": m.median_ms, "best_ms": m.best_ms, "ratio": m.over(last)}
        for m in measured
        for last in measured[-1:]
    ]
    shapes = {name: list(feed.shape) for name, feed in feeds.items()}
    difference = worst if math.isfinite(worst) else None
    return {"shapes": shapes, "runtimes": rows, "largest_difference": difference}


def _title(feeds: dict[str, Array]) -> str:
    return ", ".join(f"{n} {'x'.join(map(str, a.shape)) or 'scalar'}" for n, a in feeds.items())


def _threads() -> int:
    return os.cpu_count() or 1

"""The device that runs a model fastest: measured once, and remembered."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clrt import __version__
from clrt.errors import ClrtError, DeviceError, InputError
from clrt.ir.text import print_graph
from clrt.models.sources import Source, is_compiled, read_graph
from clrt.runtime.model.model import load
from clrt.runtime.opencl.devices import DeviceInfo, devices, no_device_text
from clrt.util import env_vars
from clrt.util.files import atomic_write, expanded, make_cache_folder, parse_json, read_regular

# A run is measured so often, or for so long.
_LEAST_RUNS, _MEASURED_S = 3, 0.3
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class DeviceTime:
    """What a model took on a device.

    Attributes:
        device: As it prints.
        milliseconds: Median of a run from arrays to arrays; None where it did not run.
        note: Why it did not.
    """

    device: str
    milliseconds: float | None
    note: str = ""


@dataclass(frozen=True)
class DeviceChoice:
    """The fastest device for a model: print it for the table that it was chosen by.

    Attributes:
        device: What `device=` of `load` takes, by its `index`.
        times: Every candidate, the fastest first.
        remembered: Whether it was measured before, by this program or another.
    """

    device: DeviceInfo
    times: tuple[DeviceTime, ...]
    remembered: bool

    def __str__(self) -> str:
        width = max(len(t.device) for t in self.times)
        rows = [
            f"{t.device:{width}}  "
            + (t.note if t.milliseconds is None else f"{t.milliseconds:10.3f} ms")
            for t in self.times
        ]
        how = "measured before" if self.remembered else "measured now"
        return "\n".join([f"{self.device}, {how}:", *rows])


def pick_device(
    source: Source,
    shapes: Mapping[str, Sequence[int]],
    *,
    cache_dir: str | Path | None = None,
) -> DeviceChoice:
    """Runs a model on each usable device that is no simulator, and names the fastest.

    The answer is kept in the cache folder, for models of the same graph, shapes up to the same
    powers of two, and the same devices and drivers. Weights make no difference.

    Args:
        source: As for `load`.
        shapes: Input shapes; inputs are zeros.
        cache_dir: As for `load`.

    Raises:
        DeviceError: The model runs on none of them; the reasons are in the message.
        ModelError, UnsupportedError, InputError: As `load`, or a shape does not fit.
    """
    if not isinstance(shapes, Mapping):
        raise InputError(f"Shapes are a dict by input name; {shapes!r} is none.")
    candidates = [d for d in devices() if d.usable and not d.caps.simulator]
    if not candidates:
        raise DeviceError(no_device_text(devices()))
    folder = (env_vars.cache_dir() if cache_dir is None else expanded(cache_dir)) / "devices"
    path = folder / f"{_key(source, shapes, candidates)}.json"
    times = _remembered(path, candidates)
    remembered = times is not None
    if times is None:
        measured = [_measure(source, shapes, d, cache_dir) for d in candidates]
        times = tuple(sorted(measured, key=lambda t: (t.milliseconds is None, t.milliseconds)))
    if times[0].milliseconds is None:
        reasons = "; ".join(f"{t.device}: {t.note}" for t in times)
        raise DeviceError(f"The model runs on no device, see `clrt devices`: {reasons}")
    if not remembered:
        _remember(folder, path, times)
    best = next(d for d in candidates if str(d) == times[0].device)
    return DeviceChoice(best, times, remembered)


def _key(
    source: Source, shapes: Mapping[str, Sequence[int]], candidates: Sequence[DeviceInfo]
) -> str:
    """A name for what the answer depends on."""
    if isinstance(source, (str, Path)) and is_compiled(expanded(source)):
        from clrt.models.compiled import read_compiled

        graph = read_compiled(expanded(source)).graph
    else:
        graph = read_graph(expanded(source) if isinstance(source, (str, Path)) else source)
    buckets = {n: [1 << max(int(d) - 1, 0).bit_length() for d in shapes[n]] for n in sorted(shapes)}
    caps = [(str(d), d.caps.driver, d.caps.compute_units) for d in candidates]
    parts = (__version__, print_graph(graph), json.dumps(buckets), json.dumps(caps))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _measure(
    source: Source,
    shapes: Mapping[str, Sequence[int]],
    device: DeviceInfo,
    cache_dir: str | Path | None,
) -> DeviceTime:
    try:
        with load(source, device=device.index, cache_dir=cache_dir) as model:
            feeds = model.zeros(shapes)
            model.run(feeds)  # compiles, uploads and plans
            seconds: list[float] = []
            while len(seconds) < _LEAST_RUNS or sum(seconds) < _MEASURED_S:
                start = time.perf_counter()
                model.run(feeds)
                seconds.append(time.perf_counter() - start)
    except InputError:
        raise
    except ClrtError as error:
        return DeviceTime(str(device), None, str(error))
    return DeviceTime(str(device), 1e3 * statistics.median(seconds))


def _remembered(path: Path, candidates: Sequence[DeviceInfo]) -> tuple[DeviceTime, ...] | None:
    """What was measured before; a file that is damaged, or that others can write, is none."""
    try:
        rows: Any = parse_json(read_regular(path, _MOST_BYTES, private=True))
        times = tuple(
            DeviceTime(str(r["device"]), _milliseconds(r["milliseconds"]), str(r["note"]))
            for r in rows
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return times if {t.device for t in times} == {str(d) for d in candidates} else None


def _milliseconds(number: Any) -> float | None:
    if number is None:
        return None
    if not (isinstance(number, float) and math.isfinite(number) and number > 0):
        raise ValueError("no time")
    return number


def _remember(folder: Path, path: Path, times: Sequence[DeviceTime]) -> None:
    """Keeps what was measured, where the folder can be written: it can be measured again."""
    with suppress(OSError, InputError):
        make_cache_folder(folder)
        with atomic_write(path) as stream:
            stream.write(json.dumps([asdict(t) for t in times]).encode())

"""Chooses the device that runs a model fastest, by measurements that are cached on disk."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clrt import __version__
from clrt.errors import ClrtError, DeviceError, InputError
from clrt.ir.text import print_graph
from clrt.models.sources import Source, is_compiled, read_graph
from clrt.runtime.model.model import load
from clrt.runtime.opencl.devices import DeviceInfo, devices, no_device_text
from clrt.util import env_vars
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import atomic_write, expanded, make_cache_folder, parse_json, read_regular
from clrt.util.renamed import renamed

# Minimum number of measured runs, and minimum seconds that they take together.
_MIN_RUNS, _MIN_MEASURED_S = 3, 0.3
# Maximum size in bytes of a cache file that is read.
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class DeviceTime:
    """Measured time of a model on one device.

    Attributes:
        device: The device as `str(DeviceInfo)` shows it.
        milliseconds: Median duration of a run, with copies from and to host arrays; None if the
            model does not run on the device.
        note: Why the model does not run on the device; "" if it does.
    """

    device: str
    milliseconds: float | None
    note: str = ""


@renamed(remembered="from_cache")
@dataclass(frozen=True)
class DeviceChoice:
    """The fastest device for a model; `print` shows a table of the measured times.

    Attributes:
        device: The fastest device; pass it, or its `index`, to `load`.
        times: Time on each usable device, fastest first.
        from_cache: Whether the times come from the disk cache, measured earlier by this or another
            process.
    """

    device: DeviceInfo
    times: tuple[DeviceTime, ...]
    from_cache: bool

    def __str__(self) -> str:
        width = max(len(t.device) for t in self.times)
        rows = [
            f"{t.device:{width}}  "
            + (t.note if t.milliseconds is None else f"{t.milliseconds:10.3f} ms")
            for t in self.times
        ]
        how = "measured before" if self.from_cache else "measured now"
        return "\n".join([f"{self.device}, {how}:", *rows])


def pick_device(
    source: Source,
    shapes: Mapping[str, Sequence[int]],
    *,
    cache_dir: str | Path | None = None,
) -> DeviceChoice:
    """Runs a model on each usable device except simulators, and returns the fastest.

    The times are cached on disk, and reused for models of the same graph (weights may differ),
    similar shapes (equal if rounded up to powers of two), and the same devices, drivers and release
    of clrt.

    Args:
        source: The model: an ONNX file, a Hugging Face folder, a compiled model, or another source
            that `clrt.load` accepts.
        shapes: Shape of each input by name, to measure at with zeros as inputs.
        cache_dir: Folder for compiled programs and times; None reads CLRT_CACHE_DIR, and defaults
            to the user's cache.

    Raises:
        DeviceError: The model runs on no device; the message has the reasons.
        ModelError: The file is missing, damaged or not ONNX.
        UnsupportedError: The model has nodes that clrt does not support.
        InputError: A shape does not match the model.
    """
    if not isinstance(shapes, Mapping):
        raise InputError(f"Shapes must be a dict by input name, not {shapes!r}.")
    candidates = [d for d in devices() if d.usable and not d.caps.simulator]
    if not candidates:
        raise DeviceError(no_device_text(devices()))
    folder = (env_vars.cache_dir() if cache_dir is None else expanded(cache_dir)) / "devices"
    path = folder / f"{_key(source, shapes, candidates)}.json"
    times = _read_times(path, candidates)
    remembered = times is not None
    if times is None:
        measured = [_measure(source, shapes, d, cache_dir) for d in candidates]
        times = tuple(sorted(measured, key=lambda t: (t.milliseconds is None, t.milliseconds)))
    if times[0].milliseconds is None:
        reasons = "; ".join(f"{t.device}: {t.note}" for t in times)
        raise DeviceError(f"The model cannot run on any device; see `clrt devices`: {reasons}")
    if not remembered:
        _write_times(folder, path, times)
    best = next(d for d in candidates if str(d) == times[0].device)
    return DeviceChoice(best, times, remembered)


def _key(
    source: Source, shapes: Mapping[str, Sequence[int]], candidates: Sequence[DeviceInfo]
) -> str:
    """Returns a digest of graph, rounded shapes and devices, to name the file of cached times.

    Args:
        source: The model.
        shapes: Shape of each input by name.
        candidates: Devices that are measured.
    """
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
    """Measures the median run time of a model on a device; notes the reason if it cannot run.

    Args:
        source: The model.
        shapes: Shape of each input by name; the inputs are zeros.
        device: The device.
        cache_dir: Folder for compiled programs; None for the default.
    """
    try:
        with load(source, device=device.index, cache_dir=cache_dir, tiers=False) as model:
            feeds = model.zeros(shapes)
            model.run(feeds)  # compiles, uploads and plans
            seconds: list[float] = []
            while len(seconds) < _MIN_RUNS or sum(seconds) < _MIN_MEASURED_S:
                start = time.perf_counter()
                model.run(feeds)
                seconds.append(time.perf_counter() - start)
    except InputError:
        raise
    except ClrtError as error:
        return DeviceTime(str(device), None, str(error))
    return DeviceTime(str(device), 1e3 * statistics.median(seconds))


def _read_times(path: Path, candidates: Sequence[DeviceInfo]) -> tuple[DeviceTime, ...] | None:
    """Reads the times of a model from a cache file.

    None if the file is absent, damaged or writable by other users, or if it has times of other
    devices than `candidates`.
    """
    try:
        rows: Any = parse_json(read_regular(path, _MAX_FILE_BYTES, private=True))
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


def _write_times(folder: Path, path: Path, times: Sequence[DeviceTime]) -> None:
    """Writes the times of a model to the cache file `path`; does nothing if this fails."""
    with suppress(OSError, InputError):
        make_cache_folder(folder)
        with atomic_write(path) as stream:
            stream.write(json.dumps([asdict(t) for t in times]).encode())

"""Tuning records: values of a kernel's tunables for devices that match given facts.

Some records ship with the package; those that `clrt tune` measured are in the user's cache folder
and take precedence. A record has a kernel's entry point and facts of the device (FACTS). Of the
records whose facts all match the device, the record with the most facts is used. So a device
without a record of its own gets that of the most similar device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TypeAlias, cast

from clrt.device.caps import DeviceCaps
from clrt.errors import warn_user
from clrt.kernels.thresholds import GROUPS, T, Thresholds
from clrt.kernels.tuned import TUNED
from clrt.util.env_vars import CACHE_DIR, cache_dir
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import atomic_write, check_targets, make_cache_folder, parse_json, read_regular

# Maximum size in bytes of a file of records.
_MAX_FILE_BYTES = 16 << 20
FACTS = ("kind", "float_lanes", "platform", "name", "driver")
"""Fields of `DeviceCaps` that a record may require to have a given value."""
Record: TypeAlias = "dict[str, object]"
"""A record as in JSON: "kernel", "tunables" (values by macro), and any of FACTS."""


@dataclass(frozen=True)
class TuningRecord:
    """Values of a kernel's tunables from the tuning record that matches a device.

    Attributes:
        tunables: Values by macro; empty if no record matches.
        source: File of the record, "clrt" for a shipped one; "" if no record matches.
        facts: Facts that the record requires of a device.
    """

    tunables: Mapping[str, int] = field(default_factory=dict)
    source: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.source:
            return "the kernel's defaults: no record fits"
        kind = "this device" if "name" in self.facts else "this architecture"
        facts = ", ".join(f"{k}={v}" for k, v in self.facts.items())
        return f"the record for {kind if facts else 'any device'} ({facts}) of {self.source}"


_NO_RECORD = TuningRecord()


def record_for(kernel: str, caps: DeviceCaps) -> Mapping[str, int]:
    """Returns the tunables of the best matching tuning record; empty if none matches.

    Args:
        kernel: Entry point of the kernel, or name of a group of thresholds.
    """
    return find_record(kernel, caps).tunables


def device_thresholds(group: type[T], caps: DeviceCaps) -> T:
    """Returns the thresholds of a group on a device, by the tuning records.

    For choices that are made without a `Lowering`: of variants, and by passes.
    """
    return cast(T, _device_thresholds(group.group, CACHE_DIR.get(), caps))


@lru_cache(maxsize=64)
def _device_thresholds(group: str, configured: str, caps: DeviceCaps) -> Thresholds:
    """Returns the thresholds of a group on a device.

    Args:
        configured: Cache folder of the user's records; distinguishes cached results.
    """
    return GROUPS[group].of(record_for(group, caps))


def find_record(kernel: str, caps: DeviceCaps) -> TuningRecord:
    """Returns the tuning record that best matches a device; an empty one if none matches.

    Args:
        kernel: Entry point of the kernel, or name of a group of thresholds.
    """
    mine = _fitting(CACHE_DIR.get(), caps).get(kernel)
    if mine is not None and _is_plausible(kernel, mine):
        return mine
    return _fitting(None, caps).get(kernel, _NO_RECORD)


@lru_cache(maxsize=64)
def _fitting(configured: str | None, caps: DeviceCaps) -> Mapping[str, TuningRecord]:
    """Returns the best matching tuning record of each kernel or group that has one, by name.

    Args:
        configured: Cache folder of the user's records, as configured; None for shipped records.
    """
    if configured is None:
        source, records = "clrt", _shipped()
    else:
        path = user_file()
        source, records = str(path), _load(path)
    found = {}
    # Of equally many facts, the first record counts.
    for record in sorted(reversed(records), key=lambda r: len(r.keys() & set(FACTS))):
        if _holds(record, caps):
            kernel, tunables = record["kernel"], record["tunables"]
            assert isinstance(kernel, str) and isinstance(tunables, dict)
            facts = {f: record[f] for f in FACTS if f in record}
            found[kernel] = TuningRecord(tunables, source, facts)
    return found


def _is_plausible(kernel: str, record: TuningRecord) -> bool:
    """Returns whether the values of a user's record are plausible for its kernel; else warns.

    The values are checked here and not when the file is read: only the kernels of imported modules
    are known.
    """
    try:
        check_values(kernel, record.tunables)
    except ValueError as error:
        _warn(record.source, error)
        return False
    return True


def new_record(kernel: str, caps: DeviceCaps, tunables: Mapping[str, int]) -> Record:
    """Returns a tuning record with all facts of a device and its driver.

    Args:
        kernel: Entry point of the kernel, or name of a group of thresholds.
        tunables: Values by macro, or by threshold.
    """
    return {"kernel": kernel, **{f: getattr(caps, f) for f in FACTS}, "tunables": dict(tunables)}


def user_file() -> Path:
    """Returns the path of the file in which `clrt tune` stores tuning records."""
    return cache_dir() / "tuning.json"


def writable_file() -> Path:
    """Returns the path of `user_file` after creating its folder and checking that it is writable.

    Raises:
        InputError: The file cannot be written, or its folder cannot be created.
    """
    path = user_file()
    make_cache_folder(path.parent)
    check_targets({"CLRT_CACHE_DIR": path})
    return path


def save(records: Sequence[Record]) -> Path:
    """Adds tuning records to the user's file; replaces records of the same kernel and facts.

    Returns:
        Path of the file.

    Raises:
        InputError: The file cannot be written.
    """
    path = writable_file()
    _load.cache_clear()  # another process may have added records

    def key(record: Record) -> tuple[object, ...]:
        return (record["kernel"], *(record.get(f) for f in FACTS))

    merged = {key(r): r for r in (*_load(path), *records)}
    with atomic_write(path) as stream:
        stream.write(json.dumps(list(merged.values()), indent=1).encode())
    _load.cache_clear()
    _fitting.cache_clear()
    _device_thresholds.cache_clear()
    return path


def _holds(record: Record, caps: DeviceCaps) -> bool:
    return all(record[f] == getattr(caps, f) for f in FACTS if f in record)


@cache
def _shipped() -> list[Record]:
    return check(
        json.loads(files("clrt.kernels").joinpath("tuning_records.json").read_text("utf-8"))
    )


@cache
def _load(path: Path) -> list[Record]:
    """Returns the tuning records in a file; [] if it is absent, [] and a warning if damaged."""
    try:
        return check(parse_json(read_regular(path, _MAX_FILE_BYTES, private=True)))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []  # an unusable cache folder is warned of elsewhere
    except (OSError, ValueError, KeyError, TypeError) as error:
        _warn(path, error)
        return []


def _warn(path: Path | str, error: Exception) -> None:
    warn_user(
        f"The tuning records in '{path}' are ignored ({error}); make them anew with "
        "`clrt tune`, or delete the file."
    )


def check(records: object) -> list[Record]:
    """Checks that tuning records have a kernel, known facts and integer values; returns them.

    Raises:
        ValueError: A record is invalid.
    """
    if not isinstance(records, list):
        raise ValueError("not a list")
    for record in records:
        if not isinstance(record, dict) or record.keys() - {"kernel", "tunables", *FACTS}:
            raise ValueError(f"not a record: {record}")
        values = record["tunables"]
        if not isinstance(values, dict) or not all(type(v) is int for v in values.values()):
            raise ValueError(f"tunables are integers: {record}")
        if not isinstance(record["kernel"], str):
            raise ValueError(f"a kernel is a name: {record}")
    return records


def check_values(kernel: str, tunables: Mapping[str, int]) -> None:
    """Checks the names and values of the tunables of a record, if its kernel's module is imported.

    Raises:
        ValueError: A tunable is unknown, or its value is outside the plausible range.
    """
    declared = TUNED.get(kernel) or GROUPS.get(kernel)
    if declared is not None:
        declared.check(tunables)

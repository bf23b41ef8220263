"""Caches the outcomes of self-tests in a file per device, driver and version of clrt."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import clrt
from clrt.device.caps import DeviceCaps
from clrt.errors import InputError
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.selftest.runner import Outcome, check_device
from clrt.util.files import atomic_write, make_cache_folder, parse_json, read_regular

# Maximum size of a file that is read.
_MAX_FILE_BYTES = 1 << 20


def recall_or_check(session: DeviceSession, anew: bool = False) -> tuple[Outcome, ...]:
    """Returns the cached self-test outcomes of a device, or else runs the self-test now.

    Outcomes are cached per device, driver and version of clrt, unless the driver failed in the
    test.

    Args:
        anew: Whether to run the self-test even if outcomes are cached.
    """
    path = path_for(session.device.caps, session.programs.folder)
    outcomes = None if anew else recall(path)
    if outcomes is None:
        outcomes = check_device(session)
        if all(o.lasting for o in outcomes):
            _remember(path, outcomes)
    return outcomes


def path_for(caps: DeviceCaps, folder: Path) -> Path:
    """Returns the path of the file in a cache folder that holds a device's self-test outcomes."""
    version = ".".join(map(str, caps.cl_version))
    facts = (clrt.__version__, caps.platform, caps.name, caps.driver, caps.kind, version)
    name = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:40]
    return folder / "self-tests" / f"{name}.json"


def recall(path: Path) -> tuple[Outcome, ...] | None:
    """Reads self-test outcomes from a file.

    None if the file is absent, empty, damaged, or writable by other users.
    """
    try:
        rows: Any = parse_json(read_regular(path, _MAX_FILE_BYTES, private=True))
        outcomes = tuple(_outcome(row) for row in rows)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return outcomes or None


def _outcome(row: Any) -> Outcome:
    """Converts a JSON object to a self-test outcome.

    Raises:
        ValueError, TypeError, KeyError: The object is not a valid outcome.
    """
    if row.keys() != {f.name for f in fields(Outcome)}:
        raise ValueError("no outcome")
    error, limit = float(row["error"]), float(row["limit"])
    if not (math.isfinite(error) and math.isfinite(limit)):
        raise ValueError("no numbers")
    kernels = tuple(map(str, row["kernels"]))
    return Outcome(str(row["family"]), kernels, error, limit, str(row["note"]))


def _remember(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Writes self-test outcomes to a file; does nothing if the file cannot be written."""
    with suppress(OSError, InputError):
        make_cache_folder(path.parent)
        with atomic_write(path) as stream:
            stream.write(json.dumps([asdict(o) for o in outcomes]).encode())

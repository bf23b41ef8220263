"""The file in the cache folder that has what a self-test found."""

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

_MOST_BYTES = 1 << 20


def recall_or_check(session: DeviceSession, anew: bool = False) -> tuple[Outcome, ...]:
    """What a self-test found: a former one of the same device, driver and version, or one now.

    Args:
        anew: Test now in any case.
    """
    path = path_for(session.device.caps, session.programs.folder)
    outcomes = None if anew else recall(path)
    if outcomes is None:
        outcomes = check_device(session)
        if all(o.lasting for o in outcomes):
            _remember(path, outcomes)
    return outcomes


def path_for(caps: DeviceCaps, folder: Path) -> Path:
    """Where the outcomes of a device lie in a cache folder."""
    version = ".".join(map(str, caps.cl_version))
    facts = (clrt.__version__, caps.platform, caps.name, caps.driver, caps.kind, version)
    name = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:40]
    return folder / "self-tests" / f"{name}.json"


def recall(path: Path) -> tuple[Outcome, ...] | None:
    """The outcomes of a file; None where it is damaged, or where others can write it."""
    try:
        rows: Any = parse_json(read_regular(path, _MOST_BYTES, private=True))
        found = tuple(_outcome(row) for row in rows)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return found or None


def _outcome(row: Any) -> Outcome:
    """An outcome from JSON.

    Raises:
        ValueError, TypeError, KeyError: It is none.
    """
    if row.keys() != {f.name for f in fields(Outcome)}:
        raise ValueError("no outcome")
    error, limit = float(row["error"]), float(row["limit"])
    if not (math.isfinite(error) and math.isfinite(limit)):
        raise ValueError("no numbers")
    kernels = tuple(map(str, row["kernels"]))
    return Outcome(str(row["family"]), kernels, error, limit, str(row["note"]))


def _remember(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Keeps outcomes where the folder can be written: else the next process tests again."""
    with suppress(OSError, InputError):
        make_cache_folder(path.parent)
        with atomic_write(path) as stream:
            stream.write(json.dumps([asdict(o) for o in outcomes]).encode())

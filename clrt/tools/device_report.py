"""All that the project wants to know of a device that it has not: `clrt report-device`."""

from __future__ import annotations

import contextlib
import datetime
import getpass
import json
import platform
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, TypeAlias

import clrt
from clrt.device.caps import DeviceCaps
from clrt.errors import ClrtError
from clrt.kernels.tuned import TUNED
from clrt.kernels.tuning_records import find_record
from clrt.runtime.opencl.compiler_probes import PROBES, compiled_probes, driver_facts
from clrt.runtime.opencl.peaks import launch_times, peaks_of
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.selftest.runner import Outcome, check_device

Record: TypeAlias = "dict[str, Any]"
# Of the form of the report.
_FORMAT = 1
# What looks like a path, of Windows, too.
_PATH = re.compile(r"(?:\b[A-Za-z]:)?[\\/][^\s'\",;:()]*")
_HIDDEN = "…"


def report_device(
    session: DeviceSession, progress: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """The report on a device, as JSON takes it; some ten seconds.

    Nothing in it names the user, the machine or its files.

    Args:
        progress: Called with what is done next.
    """
    caps = session.device.caps
    progress("what it takes")
    takes = compiled_probes(session)
    progress("what it computes")
    outcomes = check_device(session)
    progress("how fast it is")
    return {
        "format": _FORMAT,
        "clrt": clrt.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "system": {
            "os": platform.system(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        },
        "device": json.loads(caps.to_json()),
        "driver": driver_facts(session),
        "takes": takes,
        "quirks": sorted(caps.quirks),
        "deviations": list(_deviations(caps, takes, outcomes)),
        "self_test": [{**asdict(o), "note": shown_to_others(o.note)} for o in outcomes],
        "measured": _measured(session),
        "tuned": list(_tuned(caps)),
    }


def _deviations(
    caps: DeviceCaps, takes: dict[str, bool], outcomes: tuple[Outcome, ...]
) -> Iterator[str]:
    """What a device does in another way than it says."""
    for name, probe in PROBES.items():
        if takes[name] != probe.reported(caps):
            what = "compiles, and is not reported" if takes[name] else "is reported, and does not"
            yield f"{name}: {what}{'' if takes[name] else ' compile'}"
    yield from (f"wrong results: {o}" for o in outcomes if o.is_wrong)
    yield from (f"does not run: {o.family}" for o in outcomes if o.note and not o.is_wrong)


def _measured(session: DeviceSession) -> Record:
    """Ceilings of the device: FLOP/s, bytes a second, and what launches take."""
    try:
        peaks, launches = peaks_of(session), launch_times(session)
    except ClrtError as error:
        return {"error": shown_to_others(str(error))}
    return {
        "gflops": peaks.gflops,
        "gbs": peaks.gbs,
        "gbs_by_bytes": [list(pair) for pair in peaks.cached],
        "launch_us": 1e6 * launches.each,
        "launch_and_wait_us": 1e6 * launches.alone,
    }


def _tuned(caps: DeviceCaps) -> Iterator[Record]:
    """The records of the user for this device."""
    for entry in sorted(TUNED):
        found = find_record(entry, caps)
        if found.source not in ("", "clrt"):
            yield {"kernel": entry, **found.facts, "tunables": dict(found.tunables)}


def shown_to_others(text: str) -> str:
    """What a driver or compiler says, without paths and the names of user and machine."""
    text = _PATH.sub(_HIDDEN, text)
    names = [socket.gethostname()]
    with contextlib.suppress(OSError, KeyError, ImportError):  # who has no name
        names.append(getpass.getuser())
    for name in filter(None, names):
        text = re.sub(rf"\b{re.escape(name)}\b", _HIDDEN, text)
    return text

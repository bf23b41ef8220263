"""Reports the features, self-test results and speed of a device, for `clrt report-device`."""

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
from clrt.kernels.tunables import declarations
from clrt.kernels.tuning_records import find_record
from clrt.ops.module_index import import_all
from clrt.runtime.opencl.compiler_probes import PROBES, compiled_probes, driver_facts
from clrt.runtime.opencl.peaks import launch_times, peaks_of
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.selftest.runner import Outcome, check_device

Record: TypeAlias = "dict[str, Any]"
# Version of the report's format.
_FORMAT = 1
# Matches anything that looks like a path, of Windows too.
_PATH = re.compile(r"(?:\b[A-Za-z]:)?[\\/][^\s'\",;:()]*")
_HIDDEN = "…"


def report_device(
    session: DeviceSession, progress: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """Tests and measures a device in about ten seconds, and returns the report as data for JSON.

    Nothing in the report names the user, the machine or its files.

    Args:
        session: Session of the device.
        progress: Called with the name of each stage as it begins.
    """
    caps = session.device.caps
    progress("what it takes")
    compiles = compiled_probes(session)
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
        "takes": compiles,
        "quirks": sorted(caps.quirks),
        "deviations": list(_deviations(caps, compiles, outcomes)),
        "self_test": [{**asdict(o), "note": shown_to_others(o.note)} for o in outcomes],
        "measured": _measured(session),
        "tuned": list(_tuned(caps)),
    }


def _deviations(
    caps: DeviceCaps, compiles: dict[str, bool], outcomes: tuple[Outcome, ...]
) -> Iterator[str]:
    """Yields a text for each feature that a device reports wrongly, and each failed self-test case.

    Args:
        caps: Capabilities that the device reports.
        compiles: Whether the device compiles each test kernel, by its name in `PROBES`.
        outcomes: Outcomes of the self-test.
    """
    for name, probe in PROBES.items():
        if compiles[name] != probe.reported(caps):
            if compiles[name]:
                yield f"{name}: compiles, and is not reported"
            else:
                yield f"{name}: is reported, and does not compile"
    yield from (f"wrong results: {o}" for o in outcomes if o.is_wrong)
    yield from (f"does not run: {o.family}" for o in outcomes if o.note and not o.is_wrong)


def _measured(session: DeviceSession) -> Record:
    """Measures peak FLOP/s, bandwidths and launch times of a device, for its report.

    If a measurement fails, returns its error message as the only item, "error".
    """
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
    """Yields the user's own tuning records for a device, without records shipped with clrt."""
    import_all()  # declares the tunables of all kernels
    for entry in sorted(declarations()):
        record = find_record(entry, caps)
        if record.source not in ("", "clrt"):
            yield {"kernel": entry, **record.facts, "tunables": dict(record.tunables)}


def shown_to_others(text: str) -> str:
    """Returns a text in which paths and the names of user and machine are replaced by "…"."""
    text = _PATH.sub(_HIDDEN, text)
    names = [socket.gethostname()]
    with contextlib.suppress(OSError, KeyError, ImportError):  # the user has no name
        names.append(getpass.getuser())
    for name in filter(None, names):
        text = re.sub(rf"\b{re.escape(name)}\b", _HIDDEN, text)
    return text

"""Refuses devices whose self-test found wrong results; results are cached on disk."""

from __future__ import annotations

from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from clrt.device.caps import DeviceCaps
from clrt.util import env_vars

if TYPE_CHECKING:
    from clrt.runtime.opencl.session import DeviceSession
    from clrt.runtime.selftest.runner import Outcome

# Values of CLRT_SELF_TEST.
ALWAYS, NEVER = "always", "never"
_seen: set[tuple[object, Path]] = set()
_lock = RLock()


def needs_self_test(caps: DeviceCaps) -> bool:
    """Returns whether a device is self-tested before its first use.

    CPU devices and simulators are tested only if the environment variable CLRT_SELF_TEST asks for
    it. All other devices are tested unless the variable forbids it. (OpenCL implementations for
    CPUs are well tested, and take seconds to compile the test's kernels.)
    """
    asked = env_vars.SELF_TEST.get()
    return asked == ALWAYS or (asked != NEVER and not caps.is_cpu and not caps.simulator)


def ensure_right(session: DeviceSession) -> None:
    """Runs a device's self-test at its first use in this process, unless its outcome is cached.

    The test takes about a second. If the variable CLRT_SELF_TEST forces the test, it runs despite a
    cached outcome. Does nothing for devices that need no self-test.

    Raises:
        DeviceError: The device computes wrong results. The message names the kernels, the driver
            and remedies.
    """
    if not needs_self_test(session.device.caps):
        return
    key = (session.device.key, session.programs.folder)
    with _lock:
        if key in _seen:
            return
        from clrt.runtime.selftest.result_cache import recall_or_check

        outcomes = recall_or_check(session, anew=env_vars.SELF_TEST.get() == ALWAYS)
        _refuse_wrong(session, outcomes)
        _seen.add(key)


def _refuse_wrong(session: DeviceSession, outcomes: tuple[Outcome, ...]) -> None:
    wrong = [o for o in outcomes if o.is_wrong]
    if not wrong:
        return
    from clrt.errors import DeviceError
    from clrt.runtime.opencl.devices import devices

    others = any(
        d.usable and not d.caps.simulator and d.index != session.device.index for d in devices()
    )
    other = ", or take another device of `clrt devices`" if others else ""
    failures = "; ".join(map(str, {o.family: o for o in wrong}.values()))
    raise DeviceError(
        f"{session.device} computes wrong results with its driver {session.device.caps.driver}: "
        f"{failures}. Install another version of the driver{other}; `clrt report-device` writes a "
        f"report for the project, and CLRT_SELF_TEST={NEVER} uses the device nevertheless."
    )

"""Twins of devices: PoCL's second driver, which runs kernels on the calling thread.

PoCL's usual driver wakes its threads for each launch, which takes longer than a small kernel. Its
driver `basic` (`cpu-minimal` in later versions) computes a launch in the call that enqueues it, on
one core. Both drivers' devices share a context and its buffers, without copies. Measured with PoCL
3.0 on 2 cores: 40 empty launches take 31 us on the twin, 54 to 179 us on the usual driver.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clrt.util import env_vars

if TYPE_CHECKING:
    from clrt.runtime.opencl.driver import cl

_VARIABLE = "POCL_DEVICES"
# Value of POCL_DEVICES: PoCL's drivers for CPUs, of which a build has the first two, or all. PoCL
# then lists no devices of other drivers.
_DRIVERS = "basic pthread tbb"
# Devices of NVIDIA's drivers, which a PoCL with a driver for CUDA would list.
_NVIDIA = ("/dev/nvidiactl", "/dev/nvmap")
# The names of the drivers' devices begin so; those of version 4 and later are the second ones.
_NAMES = {
    "basic": re.compile(r"(?:basic|cpu-minimal)\b"),
    "tbb": re.compile(r"(?:cpu-)?tbb\b"),
    "pthread": re.compile(r"(?:pthread|cpu(?!-minimal|-tbb))\b"),
}


def twin_settings() -> dict[str, str]:
    """Returns the environment variable with which PoCL lists twins as well.

    {} if the user has set it, if CLRT_TWINS is "off", on systems other than Linux, or if PoCL may
    have a driver for a GPU.
    """
    wanted = sys.platform == "linux" and env_vars.TWINS.get() != "off"
    if not wanted or _VARIABLE in os.environ or any(Path(n).exists() for n in _NVIDIA):
        return {}
    return {_VARIABLE: _DRIVERS}


def split_twins(
    handles: Sequence[cl.Device],
) -> list[tuple[cl.Device, cl.Device | None]]:
    """Pairs the devices of a platform with their twins.

    Args:
        handles: All devices of the platform.

    Returns:
        A single pair (device, its twin) if the platform has the devices that `_DRIVERS` asks for,
        and no others: TBB's is the usual device if there is one, and its other one is left out.
        Otherwise (device, None) for each device, which the user chose.
    """
    by_kind = {kind: h for kind, name in _NAMES.items() for h in handles if name.match(h.name)}
    usual = by_kind.get("tbb") or by_kind.get("pthread")
    if usual is None or "basic" not in by_kind or len(by_kind) != len(handles):
        return [(h, None) for h in handles]
    return [(usual, by_kind["basic"])]

"""The matrix unit of this machine's CPU, which a process must ask the system for."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from pathlib import Path

from clrt.device.caps import AMX_BFLOAT16, MatrixShape

_FLAGS = {"amx_tile", "amx_bf16"}
# Of Linux on x86-64: the system call arch_prctl, what it is asked for, and for which registers.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18


@cache
def matrix_shapes() -> frozenset[MatrixShape]:
    """What `DeviceCaps.matrix_shapes` says of a CPU device on this machine.

    The permission holds for all threads of the process, and for its forks.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return frozenset()
    try:
        flags = set(Path("/proc/cpuinfo").read_text("utf-8").split())
    except OSError:
        return frozenset()
    if not flags >= _FLAGS:
        return frozenset()
    refused = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
    return frozenset() if refused else frozenset({AMX_BFLOAT16})

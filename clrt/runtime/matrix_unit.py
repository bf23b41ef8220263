"""What this machine's CPU multiplies at once: dots of bytes, and the matrix unit.

For that one a process must ask the system.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from pathlib import Path

from clrt.device.caps import AMX_BFLOAT16, VNNI_INT8, MatrixShape

_UNIT = {"amx_tile", "amx_bf16"}
_DOTS = {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"}
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
    found = {VNNI_INT8} if flags >= _DOTS else set()
    if flags >= _UNIT and not _refused():
        found.add(AMX_BFLOAT16)
    return frozenset(found)


def _refused() -> bool:
    """Whether the system keeps the matrix unit's registers from this process."""
    refused: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
    return bool(refused)

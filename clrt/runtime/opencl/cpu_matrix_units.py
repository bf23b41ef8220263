"""What this machine's CPU multiplies at once: dots of bytes, and the matrix unit.

For that one a process must ask the system.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from pathlib import Path

from clrt.device.caps import AMX_BFLOAT16, AVX2_INT8, AVX_VNNI_INT8, VNNI_INT8, MatrixShape

_UNIT = {"amx_tile", "amx_bf16"}
_AVX2 = {"avx2", "f16c", "fma"}
# Flags of /proc/cpuinfo that each takes, the best first.
_DOTS = {
    VNNI_INT8: {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"},
    AVX_VNNI_INT8: {*_AVX2, "avx_vnni"},
    AVX2_INT8: _AVX2,
}
# Of Linux on x86-64: the system call arch_prctl, what it is asked for, and for which registers.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18


@cache
def matrix_shapes() -> frozenset[MatrixShape]:
    """What `DeviceCaps.matrix_shapes` says of a CPU device on this machine.

    The permission holds for all threads of the process, and for its forks.
    """
    unit = {AMX_BFLOAT16} if _flags() >= _UNIT and not _refused() else set()
    return frozenset({*host_dots()[:1], *unit})


def host_dots() -> tuple[MatrixShape, ...]:
    """By what this machine's CPU can multiply bytes, the best first."""
    return tuple(shape for shape, wanted in _DOTS.items() if _flags() >= wanted)


def _flags() -> frozenset[str]:
    """The names of instructions that Linux says of an x86-64 CPU; none elsewhere."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return frozenset()
    try:
        return frozenset(Path("/proc/cpuinfo").read_text("utf-8").split())
    except OSError:
        return frozenset()


def _refused() -> bool:
    """Whether the system keeps the matrix unit's registers from this process."""
    refused: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
    return bool(refused)

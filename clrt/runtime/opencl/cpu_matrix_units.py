"""Detects int8 dot-product instructions and the AMX matrix unit of the host CPU.

Linux lets a process use AMX only after the process has requested the permission.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from pathlib import Path

from clrt.device.caps import AMX_BFLOAT16, AVX2_INT8, AVX_VNNI_INT8, VNNI_INT8, MatrixShape

# Required flags of /proc/cpuinfo: of AMX, and of each int8 dot product, the fastest first.
_AMX = {"amx_tile", "amx_bf16"}
_AVX2 = {"avx2", "f16c", "fma"}
_DOTS = {
    VNNI_INT8: {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"},
    AVX_VNNI_INT8: {*_AVX2, "avx_vnni"},
    AVX2_INT8: _AVX2,
}
# Linux on x86-64: number of the system call arch_prctl, its request for a permission, and the
# number of the AMX tile registers.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18


@cache
def matrix_shapes() -> frozenset[MatrixShape]:
    """Returns `DeviceCaps.matrix_shapes` for CPU devices: the best int8 dot product, and AMX.

    Empty if the CPU has neither, or if its flags cannot be read. Requests the permission to use
    AMX for all threads of the process and its forks.
    """
    amx = {AMX_BFLOAT16} if _flags() >= _AMX and not _is_amx_refused() else set()
    return frozenset({*host_dots()[:1], *amx})


def host_dots() -> tuple[MatrixShape, ...]:
    """Returns the int8 dot-product instruction sets of this machine's CPU, best first."""
    return tuple(shape for shape, required in _DOTS.items() if _flags() >= required)


def _flags() -> frozenset[str]:
    """Returns all words of /proc/cpuinfo, which include the CPU flags.

    Empty if the file cannot be read, or on systems other than Linux on x86-64.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return frozenset()
    try:
        return frozenset(Path("/proc/cpuinfo").read_text("utf-8").split())
    except OSError:
        return frozenset()


def _is_amx_refused() -> bool:
    """Requests permission for this process to use AMX; returns whether the system refuses it."""
    refused: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
    return bool(refused)

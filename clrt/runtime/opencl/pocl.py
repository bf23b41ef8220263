"""Makes PoCL's pip build usable on CPUs that are newer than its LLVM.

PoCL 3.0 asks LLVM 14 for the name of the host CPU. For an AMD family that LLVM does not know (such
as Zen 5 of 2024), LLVM returns "generic", but refuses this name as a target. Every build then fails
with "unknown target CPU 'generic'" (pocl issue 1049, open since 2022). PoCL has no setting for the
name, so this module overwrites the name in PoCL's device struct.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import struct
import sys
from pathlib import Path

_UNKNOWN_CPU = b"generic"
_TRIPLE_PREFIX = b"x86_64"
# Bytes of PoCL's device struct that are searched for the CPU name.
_RECORD_BYTES = 4096
_POINTER_BYTES = 8
# CPUs, in LLVM's names, whose code uses 512-bit vectors; and those with 128-bit vectors.
_AVX512_TARGETS = frozenset(
    {"skx", "skylake-avx512", "cannonlake", "cascadelake", "cooperlake", "icelake-client",
     "icelake-server", "rocketlake", "tigerlake", "sapphirerapids", "emeraldrapids",
     "graniterapids", "graniterapids-d", "diamondrapids", "knl", "knm", "x86-64-v4", "znver4",
     "znver5"}
)  # fmt: skip
_SSE_TARGETS = frozenset(
    {"generic", "x86-64", "x86-64-v2", "core2", "penryn", "nehalem", "westmere", "silvermont",
     "goldmont", "goldmont-plus", "tremont"}
)  # fmt: skip
# CPU kinds that PoCL has libraries of built-in functions for: a flag of /proc/cpuinfo and the kind
# that it requires, newest first; then the kinds of older CPUs.
_NEW_BUILTINS = (("avx512f", "avx512"), ("avx2", "avx2"))
_OLD_BUILTINS = frozenset({"sse2", "ssse3", "sse41", "avx", "avx_f16c", "avx_fma4"})
# A device's version ends in "<kind>-<architecture>-<vendor>-<system>-<cpu>"; the vendor is
# whoever built LLVM ("unknown", "pc", "redhat").
_TARGET = re.compile(r"-([^- ]+)-[^- ]+-(?:linux-\w+|darwin[\d.]*|windows-\w+)-(\S+)")


def target_of(device_version: str) -> tuple[str, str]:
    """Returns the architecture and the CPU that PoCL compiles for, in LLVM's names.

    Args:
        device_version: CL_DEVICE_VERSION of the PoCL device, which ends in the compile target.

    Returns:
        (architecture, CPU). The CPU is "generic" if LLVM did not recognise it; both are "" if the
        version has no target.
    """
    match = _TARGET.search(device_version)
    return (match[1], match[2]) if match else ("", "")


def float_lanes(architecture: str, cpu: str) -> int:
    """Returns how many float32 elements fit in a vector register of code for a compile target.

    Args:
        architecture: LLVM's name of the instruction set, such as "x86_64".
        cpu: LLVM's name of the CPU model, such as "skx".
    """
    if architecture != "x86_64" or cpu in _SSE_TARGETS:
        return 4
    return 16 if cpu in _AVX512_TARGETS else 8


def repair_target_cpu(device_pointer: int) -> str:
    """Overwrites an unrecognised CPU name in PoCL's device struct by one that its LLVM knows.

    The struct is read through /proc/self/mem, so that a wrong pointer is an error instead of a
    crash. Nothing is written unless the CPU name follows the target triple, as in PoCL's struct.

    Args:
        device_pointer: The device's cl_device_id, an address.

    Returns:
        The new CPU name; "" if nothing was changed. Only Linux on x86-64 is supported.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return ""
    if not Path("/proc/self/mem").exists():
        return ""
    name = _target_cpu()
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        record = _read(memory, device_pointer, _RECORD_BYTES)
        pointers = struct.unpack(f"<{len(record) // _POINTER_BYTES}Q", record)
        texts = [_read(memory, p, 32).split(b"\0")[0] for p in pointers]
    finally:
        os.close(memory)
    for before, text, address in zip(texts, texts[1:], pointers[1:], strict=False):
        if text == _UNKNOWN_CPU and before.startswith(_TRIPLE_PREFIX):
            ctypes.memmove(address, name + b"\0", len(name) + 1)
            return name.decode()
    return ""


def lacks_builtins() -> bool:
    """Returns whether PoCL's pip package lacks built-in functions for this CPU: no kernel compiles.

    Reduced packages of PoCL and frozen applications omit the files for some CPUs. False if that
    cannot be determined.
    """
    spec = importlib.util.find_spec("pyopencl")
    if spec is None or spec.origin is None:
        return False
    shared = Path(spec.origin).parents[1] / "pocl_binary_distribution" / ".libs" / "share" / "pocl"
    present = {path.stem.rpartition("-")[2] for path in shared.glob("kernel-*.bc")}
    flags = _cpu_flags()
    newest = next((kind for flag, kind in _NEW_BUILTINS if flag in flags), None)
    needed = _OLD_BUILTINS if newest is None else {newest}
    return bool(present and flags and not needed <= present)


def _read(memory: int, address: int, nbytes: int) -> bytes:
    """Reads memory of this process; b"" if it cannot be read.

    Args:
        memory: File descriptor of /proc/self/mem.
        address: Address of the first byte.
        nbytes: Number of bytes to read.
    """
    if sys.platform == "win32":
        return b""
    try:
        return os.pread(memory, nbytes, address)
    except (OSError, OverflowError):
        return b""


def _cpu_flags() -> set[str]:
    """Returns all words of /proc/cpuinfo, the CPU flags among them; empty if it is unreadable."""
    try:
        return set(Path("/proc/cpuinfo").read_text("utf-8").split())
    except OSError:
        return set()


def _target_cpu() -> bytes:
    """Returns LLVM 14's name of an x86-64 CPU model whose instructions this CPU has.

    Tries skx, znver3, haswell and x86-64 in this order. `repair_target_cpu` overwrites the name
    "generic" by the result, which must therefore not be longer than "generic".
    """
    flags = _cpu_flags()
    skylake = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "clwb", "adx", "fma"}
    zen3 = {"avx2", "fma", "bmi2", "clwb", "clzero", "vaes", "vpclmulqdq", "sha_ni", "rdpid"}
    haswell = {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}
    if skylake <= flags:
        return b"skx"
    if zen3 <= flags:
        return b"znver3"
    return b"haswell" if haswell <= flags else b"x86-64"

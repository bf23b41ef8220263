"""Makes PoCL's pip build usable on CPUs that are newer than its LLVM.

PoCL 3.0 asks LLVM 14 for the name of the host CPU. For an AMD family LLVM does not know (Zen 5, in
2024) that is "generic", which the same LLVM then refuses as a target: every build fails with
"unknown target CPU 'generic'" (pocl issue 1049, open since 2022). PoCL has no setting for the name,
so it is changed where the device record keeps it.
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

_UNKNOWN = b"generic"
_TRIPLE = b"x86_64"
_RECORD_BYTES = 4096
_WORD_BYTES = 8
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
# By a flag of the system, newest first: the kinds of CPUs for which PoCL has functions; and the
# kinds before these.
_NEW_BUILTINS = (("avx512f", "avx512"), ("avx2", "avx2"))
_OLD_BUILTINS = frozenset({"sse2", "ssse3", "sse41", "avx", "avx_f16c", "avx_fma4"})
# A device's version ends in "<kind>-<architecture>-<vendor>-<system>-<cpu>"; the vendor is
# whoever built LLVM ("unknown", "pc", "redhat").
_TARGET = re.compile(r"-([^- ]+)-[^- ]+-(?:linux-\w+|darwin[\d.]*|windows-\w+)-(\S+)")


def target_of(device_version: str) -> tuple[str, str]:
    """The architecture and the CPU that PoCL compiles for, in LLVM's names.

    The CPU is "generic" where it was not recognised; both are empty where the version names none.
    """
    found = _TARGET.search(device_version)
    return (found[1], found[2]) if found else ("", "")


def float_lanes(architecture: str, cpu: str) -> int:
    """Floats in the vector registers that code for a target uses."""
    if architecture != "x86_64" or cpu in _SSE_TARGETS:
        return 4
    return 16 if cpu in _AVX512_TARGETS else 8


def repair_target_cpu(device_pointer: int) -> str:
    """Gives an unrecognised host CPU a name that PoCL's LLVM knows.

    The record is read through /proc/self/mem, where a wrong pointer is an error and no crash, and
    nothing is written unless the CPU name follows the target triple as PoCL's struct has it.

    Args:
        device_pointer: The cl_device_id.

    Returns:
        The name it has now; empty where nothing was changed.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return ""
    if not Path("/proc/self/mem").exists():
        return ""
    name = _target_cpu()
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        record = _read(memory, device_pointer, _RECORD_BYTES)
        words = struct.unpack(f"<{len(record) // _WORD_BYTES}Q", record)
        texts = [_read(memory, w, 32).split(b"\0")[0] for w in words]
    finally:
        os.close(memory)
    for before, text, address in zip(texts, texts[1:], words[1:], strict=False):
        if text == _UNKNOWN and before.startswith(_TRIPLE):
            ctypes.memmove(address, name + b"\0", len(name) + 1)
            return name.decode()
    return ""


def lacks_builtins() -> bool:
    """Whether PoCL was installed without its functions for this CPU, so that no kernel compiles.

    Smaller packages of it, and frozen applications, leave those for some CPUs out.
    """
    spec = importlib.util.find_spec("pyopencl")
    if spec is None or spec.origin is None:
        return False
    shared = Path(spec.origin).parents[1] / "pocl_binary_distribution" / ".libs" / "share" / "pocl"
    there = {path.stem.rpartition("-")[2] for path in shared.glob("kernel-*.bc")}
    flags = _cpu_flags()
    newest = next((kind for flag, kind in _NEW_BUILTINS if flag in flags), None)
    needed = _OLD_BUILTINS if newest is None else {newest}
    return bool(there and flags and not needed <= there)


def _read(memory: int, address: int, nbytes: int) -> bytes:
    if sys.platform == "win32":
        return b""
    try:
        return os.pread(memory, nbytes, address)
    except (OSError, OverflowError):
        return b""


def _cpu_flags() -> set[str]:
    """What the system says of this CPU's instructions, among other words; empty where unknown."""
    try:
        return set(Path("/proc/cpuinfo").read_text("utf-8").split())
    except OSError:
        return set()


def _target_cpu() -> bytes:
    """The newest name in LLVM 14 whose instructions this CPU has, no longer than "generic"."""
    flags = _cpu_flags()
    skylake = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "clwb", "adx", "fma"}
    zen3 = {"avx2", "fma", "bmi2", "clwb", "clzero", "vaes", "vpclmulqdq", "sha_ni", "rdpid"}
    haswell = {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}
    if skylake <= flags:
        return b"skx"
    if zen3 <= flags:
        return b"znver3"
    return b"haswell" if haswell <= flags else b"x86-64"

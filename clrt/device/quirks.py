"""Quirks: measured deviations of devices from what they report, with what clrt does about each."""

from __future__ import annotations

import re

from clrt.device.caps import DeviceCaps
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class Quirk:
    """A measured deviation of a device from what it reports.

    Attributes:
        id: Name of the quirk in `DeviceCaps.quirks`.
        platform: Regular expression that is searched in the platform name.
        effect: Effect on clrt, as a clause.
        evidence: The measurement that shows the deviation.
        driver: Regular expression that is searched in the driver version; "" matches all.
    """

    id: str
    platform: str
    effect: str
    evidence: str
    driver: str = ""

    def holds(self, caps: DeviceCaps) -> bool:
        """Returns whether a device has the quirk."""
        return bool(re.search(self.platform, caps.platform) and re.search(self.driver, caps.driver))


QUIRKS: tuple[Quirk, ...] = (
    Quirk(
        "needs-linker",
        r"Portable Computing Language",
        "the device is unusable on Linux if no `ld` is on the PATH",
        "PoCL 3.0 aborts the process when it links its first kernel without binutils' ld",
    ),
    Quirk(
        "costly-binaries",
        r"Portable Computing Language",
        "programs are written to the disk cache when the device is idle",
        "PoCL 3.0 recompiles each kernel for its binary: 1.6 s for the nine kernels of MiniLM, in "
        "which no launch runs; PoCL has its own cache of compiled kernels",
    ),
    Quirk(
        "compiles-at-launch",
        r"Portable Computing Language",
        "the compiler process of the tiers also launches each kernel",
        "PoCL 3.0 compiles a kernel for a work-group size at its first launch, MiniLM's nine in "
        "2.7 s of 3.7 s, and stores it in its own cache; no launch runs meanwhile",
    ),
    Quirk(
        "slow-optimizer",
        r"Portable Computing Language|Intel\(R\) OpenCL$",
        "on CPUs, programs are compiled without optimization first (`CLRT_TIERS`)",
        "CPU seconds to compile MobileNetV2: Intel's runtime 2.6, without optimization 0.9; PoCL "
        "3.0 3.6 and 1.8",
    ),
    Quirk(
        "slow-builtins",
        r"Portable Computing Language",
        "kernels use common/math.clh, never builtins, in hot loops",
        "PoCL 3.0 on AVX2: exp takes 5.1 ns per element, the polynomial 0.2 ns",
    ),
    Quirk(
        "slow-launches",
        r"Portable Computing Language",
        "chosen after other implementations for the same kind of device",
        "PoCL 3.0 wakes its threads for each kernel: MiniLM takes 1.9 ms at 1 x 16 and 7.9 ms at "
        "1 x 128; Intel's runtime takes 1.3 ms and 7.2 ms, and compiles in half the time",
    ),
    Quirk(
        "takes-assembler",
        r"Portable Computing Language|Intel\(R\) OpenCL$",
        "kernels use the CPU's matrix unit by inline assembler",
        "PoCL 3.0 and Intel's runtime of 2026 accept inline assembler with AMX, and have no "
        "builtin in common",
    ),
    Quirk(
        "no-assembler-beside-barriers",
        r"Portable Computing Language",
        "GPU matrix units that need inline assembler are not used",
        "PoCL 6.0 on LLVM 18 aborts the process when it compiles a kernel with a barrier and "
        '`__asm__ volatile("nop")`: "CallBase::getArgOperand: Out of bounds"; without a barrier '
        "the kernel works, and PoCL 3.0 compiles both",
        driver=r"^6\.",
    ),
    Quirk(
        "computes-while-waiting",
        r"Intel\(R\) OpenCL$",
        "the end of a run that uses some of the cores is polled, not waited for",
        "Intel's runtime of 2026 computes on the waiting thread, too: a run on one of two cores "
        "takes 40 ms and 2.0 s of CPU time per second, with polling 71 ms and 1.05 s",
    ),
    Quirk(
        "stays-behind-in-forks",
        r"Portable Computing Language",
        "a forked process that uses the device of its parent gets an error",
        "PoCL 3.0's threads do not exist in the fork: its first command waits forever",
    ),
    Quirk(
        "counts-small-units",
        r"Intel\(R\) OpenCL (HD )?Graphics",
        "eight compute units count as one core in the partition of launches",
        "not measured: Intel's occupancy calculator runs a work-group on the 8 or 16 execution "
        "units of a core; the runtime counts each, 512 for an Arc A770, which has 32 cores",
    ),
    Quirk(
        "widens-unsigned",
        r"^rusticl$",
        "elementwise kernels compose an int64 from an int32 by its 32-bit halves",
        "Mesa 22.3.6 compiles comparisons of an int32 widened to int64 as if it were unsigned: of "
        "-1, < 0, < 5 and >> 63 are 0; correct for a loaded int64, an int16, and in Mesa 25.0.7",
        driver=r"^22\.",
    ),
    Quirk(
        "no-nested-barriers",
        r"^rusticl$",
        "functions with barriers that other functions call are inlined",
        "Mesa 25.0.7 aborts the process when it compiles such a call; 22.3.6 compiles it",
    ),
    Quirk(
        "simulator",
        r"Oclgrind",
        "chosen only by name; programs are built without optimization",
        "Oclgrind 21.10 interprets every instruction, and aborts at llvm.abs and freeze, which its "
        "own optimizer generates",
    ),
    Quirk(
        "translation-layer",
        r"OpenCLOn12",
        "chosen after every vendor driver",
        "it hides the device that the vendor's own driver exposes",
    ),
)


def quirks_of(caps: DeviceCaps) -> frozenset[str]:
    """Returns the ids of the quirks that a device has."""
    return frozenset(q.id for q in QUIRKS if q.holds(caps))

"""Quirks: measured deviations of devices from what they report, with what clrt does about each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clrt.device.caps import DeviceCaps


@dataclass(frozen=True)
class Quirk:
    """A measured deviation of a device from what it reports.

    Attributes:
        id: Name of the quirk in `DeviceCaps.quirks`.
        platform: Regular expression that is searched in the platform name.
        effect: What clrt does about it.
        evidence: The measurement that shows it.
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
        "the device is unusable where no `ld` is on the PATH, on Linux",
        "PoCL 3.0 aborts the process when it links its first kernel without binutils' ld",
    ),
    Quirk(
        "costly-binaries",
        r"Portable Computing Language",
        "programs are written to the disk cache when the device is idle",
        "PoCL 3.0 compiles each kernel once more for its binary: 1.6 s for the nine of MiniLM, and "
        "no launch is made meanwhile; of what it has compiled it keeps files of its own",
    ),
    Quirk(
        "slow-builtins",
        r"Portable Computing Language",
        "kernels use common/math.clh, never builtins, in hot loops",
        "PoCL 3.0 on AVX2: exp 5.1 ns an element against 0.2 ns for the polynomial",
    ),
    Quirk(
        "slow-launches",
        r"Portable Computing Language",
        "chosen after other implementations for the same kind of device",
        "PoCL 3.0 wakes its threads for each kernel: MiniLM takes 1.9 ms at 1 x 16 and 7.9 at "
        "1 x 128, on Intel's runtime 1.3 and 7.2, which compiles in half the time, too",
    ),
    Quirk(
        "takes-assembler",
        r"Portable Computing Language|Intel\(R\) OpenCL$",
        "kernels use the CPU's matrix unit by its instructions, where it has one",
        "PoCL 3.0 and Intel's runtime of 2026 assemble AMX in kernels, and no builtin is in both",
    ),
    Quirk(
        "no-assembler-beside-barriers",
        r"Portable Computing Language",
        "matrix units of GPUs that are used by assembler are not tried",
        "PoCL 6.0 on LLVM 18 ends the process when it compiles a kernel that has a barrier and "
        '`__asm__ volatile("nop")`: "CallBase::getArgOperand: Out of bounds"; without a barrier it '
        "runs, and PoCL 3.0 takes both",
        driver=r"^6\.",
    ),
    Quirk(
        "computes-while-waiting",
        r"Intel\(R\) OpenCL$",
        "where a model uses some of the cores, its end is looked for, not waited for",
        "Intel's runtime of 2026 lends the thread that waits to the device: on one of two cores "
        "40 ms and 2.0 s of CPU time a second, without a wait 71 ms and 1.05",
    ),
    Quirk(
        "stays-behind-in-forks",
        r"Portable Computing Language",
        "a fork of a process that has used it gets an error",
        "PoCL 3.0's threads are not in the fork: its first command there waits forever",
    ),
    Quirk(
        "counts-small-units",
        r"Intel\(R\) OpenCL (HD )?Graphics",
        "eight compute units count as one where launches are shared out",
        "not measured: Intel's occupancy calculator has a work-group on 8 or 16 execution units "
        "of a core, each of which the runtime counts: 512 of an Arc A770, which has 32 cores",
    ),
    Quirk(
        "widens-unsigned",
        r"^rusticl$",
        "elementwise kernels make an int64 of an int32 by its halves",
        "Mesa 22.3.6 takes an int32 that was made an int64 to be above every constant: -1 < 0, < 5 "
        "and >> 63 are 0; right for an int64 that was read, for an int16, and in Mesa 25.0.7",
        driver=r"^22\.",
    ),
    Quirk(
        "no-nested-barriers",
        r"^rusticl$",
        "kernels have functions with barriers inlined that other functions call",
        "Mesa 25.0.7 ends the process when it compiles one that is called so; 22.3.6 takes it",
    ),
    Quirk(
        "simulator",
        r"Oclgrind",
        "never chosen unless asked for by name; programs are built unoptimised",
        "Oclgrind 21.10 interprets every instruction, and stops at llvm.abs and freeze, which its "
        "own optimiser makes",
    ),
    Quirk(
        "translation-layer",
        r"OpenCLOn12",
        "chosen after every vendor driver",
        "it hides the device that the vendor's own driver shows",
    ),
)


def quirks_of(caps: DeviceCaps) -> frozenset[str]:
    """Returns the ids of the quirks that a device has."""
    return frozenset(q.id for q in QUIRKS if q.holds(caps))

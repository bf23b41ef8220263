"""Tiers: a program is compiled quickly first, and replaced by an optimized one between runs.

The quick tier is the same source without optimization (`QUICK`). The optimized tier is compiled
meanwhile by another process (`background_compiler.py`). Measured on 2 cores, with nothing cached
(CPU seconds of compilation; milliseconds of a run):

    Intel's runtime   MiniLM 2.1 s, quick 0.7 s (4.5 and 20 ms); MobileNetV2 2.6 s, quick 0.9 s
                      (5.4 and 61 ms); EfficientNet-B0 4.2 s, quick 1.3 s (18 and 105 ms)
    PoCL 3.0          MiniLM 3.7 s, quick 1.7 s (4.7 and 23 ms); MobileNetV2 3.6 s, quick 1.8 s
                      (7.7 and 68 ms); EfficientNet-B0 6.8 s, quick 3.1 s (18 and 130 ms)

What was measured and not chosen: `-O1` (both compilers reject it); more threads (both compile one
program at a time per process: two threads take as long as one, so that a thread in the background
would delay the quick programs); optimizing in this process (Intel's runtime runs kernels meanwhile;
PoCL runs none while it compiles a kernel, up to 1.3 s each).
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection
from dataclasses import field
from pathlib import Path

from clrt.device.caps import DeviceCaps
from clrt.errors import warn_user
from clrt.kernels.spec import KernelSpec
from clrt.runtime.opencl.driver import cl
from clrt.util import compile_progress, env_vars
from clrt.util.compile_progress import Progress
from clrt.util.fast_dataclass import dataclass

QUICK = ("-cl-opt-disable",)
"""Compiler options of the quick tier, besides those of the optimized tier."""

# Seconds after which progress is reported: shorter waits need no explanation.
_PROGRESS_S = 1.0
# Name of an executable that runs Python files; an application that embeds Python has another one.
_PYTHON = re.compile(r"(python|pypy)[\d.]*[a-z]?", re.IGNORECASE)


def interpreter() -> str | None:
    """Returns the path of the Python interpreter; None if this process is another application.

    Frozen applications are such, and programs that embed Python.
    """
    if getattr(sys, "frozen", False) or "__compiled__" in globals() or not sys.executable:
        return None
    return sys.executable if _PYTHON.fullmatch(Path(sys.executable).stem) else None


def uses_tiers(caps: DeviceCaps, requested: bool | None) -> bool:
    """Returns whether a model's programs are compiled in tiers.

    Args:
        caps: Capabilities of the device.
        requested: What the user asked for; None reads CLRT_TIERS.
    """
    setting = env_vars.TIERS.get()
    if requested is None:
        requested = None if setting == "auto" else setting == "on"
    if requested is False or caps.simulator or interpreter() is None:
        return False
    return requested or (caps.is_cpu and "slow-optimizer" in caps.quirks)


@dataclass(eq=False)
class ModelTiers:
    """The tier of each program of a model.

    Attributes:
        programs: Programs of the model; shared with its `WeightStore`.
        enabled: Whether new programs are compiled quickly first.
        on_progress: Called in another thread with the number of programs that were compiled in the
            background, and the number of all such programs; first after `_PROGRESS_S`.
        reports: Whether `report` calls `on_progress`; False for kernel sequences.
        pending: Kernels whose optimized program is being compiled in the background.
        failed: Kernels whose optimized program does not compile; their quick program stays.
        changes: Increases when kernels leave `pending`, or programs are loaded from the cache.
    """

    programs: dict[KernelSpec, cl.Program]
    enabled: bool = False
    on_progress: Progress | None = None
    reports: bool = True
    pending: set[KernelSpec] = field(default_factory=set)
    failed: set[KernelSpec] = field(default_factory=set)
    changes: int = 0
    _total: int = 0
    _began_s: float = 0.0

    def is_quick(self, spec: KernelSpec) -> bool:
        """Whether a kernel's current program was compiled quickly, or is not compiled yet."""
        return spec in self.pending or spec in self.failed

    def expect(self, specs: Collection[KernelSpec]) -> None:
        """Adds kernels to `pending`."""
        if not self.pending:
            self._total, self._began_s = 0, time.monotonic()
        self._total += len(set(specs) - self.pending)
        self.pending.update(specs)

    def settle(self, spec: KernelSpec, program: cl.Program | None) -> None:
        """Replaces the program of a pending kernel by the optimized one.

        Args:
            program: The optimized program; None if it does not compile.
        """
        if program is None:
            self.failed.add(spec)
        else:
            self.programs[spec] = program
        self.pending.discard(spec)
        self.changes += 1

    def clear(self) -> None:
        """Forgets all kernels, because the model is closed."""
        self.pending.clear()
        self.failed.clear()

    def report(self) -> None:
        """Calls `on_progress`, if compiling in the background takes a while."""
        report = self.on_progress or compile_progress.default_progress
        if report is None or not self.reports or time.monotonic() - self._began_s < _PROGRESS_S:
            return
        try:
            report(self._total - len(self.pending), self._total)
        except Exception as error:  # of the user, in a thread that must go on
            self.on_progress = None
            warn_user(f"on_progress raised {error!r} and is not called any more.")

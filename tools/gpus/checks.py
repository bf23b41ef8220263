"""Faults of the report besides compiler errors: slow loops, idle cores, long loops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from clrt.kernels.gemm_matrix_unit_gpu import products_of
from clrt.kernels.spec import KernelSpec

from .compiling import Results, describe
from .loops import Loop
from .planning import Planned, Work
from .predict import likely_seconds, seconds, share_of
from .targets import TARGETS

# Steps of a loop in one work-item, above which a launch may last too long for a watchdog.
MOST_STEPS = 4096
_FLOAT_BYTES = 4
# Multiply-adds of a unit's instruction for each of its work-items, at least.
_UNIT_SHARE = 64


@dataclass(frozen=True)
class Floor:
    """Minimum efficiency of a kernel's main loop.

    Attributes:
        macros: Macros, with values, of the programs that it applies to.
        targets: Prefixes of target names.
        share: Minimum fraction of multiply-adds; of slots, for units that dual-issue.
    """

    entry: str
    macros: Mapping[str, str]
    targets: tuple[str, ...]
    share: float

    def holds(self, kernel: KernelSpec, target: str) -> bool:
        """Returns whether the floor applies to a program."""
        defines = dict(kernel.defines)
        # What unpacks few bits on the way is another loop.
        return (
            kernel.entry == self.entry
            and target.startswith(self.targets)
            and self.macros.items() <= defines.items()
            and "BITS" not in defines
        )


_LARGE = {"T_RM": "8", "T_RN": "8"}
FLOORS = (Floor("gemm_gpu", _LARGE, ("sm_", "gfx1100", "gfx1201"), 0.8),)
# Why launches of kernels leave cores idle for longer than a launch takes.
REASONS: Mapping[str, str] = {
    "gemm_gpu": "smaller tiles read more for each product, and parts of K have 512 at least",
    "gemm_unit_gpu": "smaller tiles read more for each product, and parts of K have 512 at least",
    "few_rows_gpu": "parts of K have 1,024 at least, or the launch that joins them takes longer",
    "conv_gpu": "smaller tiles read more for each product, and parts are whole slices",
    "layer_normalization_group": "a work-group has a row, and a token is one",
    "paged_attention_gpu": "a work-group takes 64 keys at a time, of which a sequence has no more",
    "sample_draw": "one work-group draws a token of a row",
}


@dataclass(frozen=True)
class Idle:
    """Launches of a kernel that leave cores of a device without a work-group.

    Attributes:
        launches: Number of these launches.
        groups: Work-groups of the launch with the fewest.
        lost_s: Total loss per run in seconds.
        worst_s: Largest loss of one launch in seconds.
    """

    planned: Planned
    entry: str
    launches: int
    groups: int
    lost_s: float
    worst_s: float

    @property
    def reason(self) -> str:
        """Returns the stated reason; "" if there is none."""
        if self.worst_s <= self.planned.profile.launch_s:
            return "with all cores at work a launch would save less than it takes to start one"
        return REASONS.get(self.entry, "")

    def __str__(self) -> str:
        cores, lost = self.planned.profile.caps.cores, f"{1e6 * self.lost_s:.1f} µs"
        launches = f"{self.launches} launch{'es' if self.launches > 1 else ''}"
        return (
            f"`{self.entry}`: {launches} of {self.groups} or more groups on {cores} cores, {lost}"
        )


def idle_launches(planned: Planned, shares: Mapping[KernelSpec, float]) -> list[Idle]:
    """Returns launches with fewer work-groups than the device has cores, by kernel.

    Args:
        shares: How much of the device's rate the main loop of a kernel reaches.
    """
    device, found = planned.profile, defaultdict[str, list[Work]](list)
    for work in planned.work:
        if work.groups < device.caps.cores:
            found[work.kernel.entry].append(work)
    made = []
    for entry, works in sorted(found.items()):
        lost = [_lost(w, planned, shares) for w in works]
        least = min(w.groups for w in works)
        made.append(Idle(planned, entry, len(works), least, sum(lost), max(lost)))
    return made


def _lost(work: Work, planned: Planned, shares: Mapping[KernelSpec, float]) -> float:
    share = share_of(work, shares)
    likely = likely_seconds(work, planned.profile, shares)
    return likely - seconds(work, planned.profile, share)


def idle_faults(plans: Iterable[Planned], results: Results) -> Iterator[str]:
    """Yields launches that idle cores for longer than the launch overhead, without a reason."""
    shares = {t: results.shares(t) for t in TARGETS}
    for planned in plans:
        for idle in idle_launches(planned, shares[planned.profile.target]):
            if not idle.reason:
                yield f"{planned.model} on {planned.profile.name}: {idle}"


def slow_loops(results: Results) -> Iterator[str]:
    """Yields programs whose main loop is below its floor."""
    for (kernel, target), made in results.compiled.items():
        for floor in (f for f in FLOORS if f.holds(kernel, target)):
            reached = made.loop.reached if made.loop else 0.0
            if reached < floor.share:
                what = f"{100 * reached:.0f} %, less than {100 * floor.share:.0f} %"
                yield f"{describe(kernel)} on {target}: {what}"


def long_loops(plans: Sequence[Planned], results: Results) -> Iterator[str]:
    """Yields kernels whose work-items loop for too many steps; the worst launch of each."""
    loops: dict[KernelSpec, Loop] = {}
    for target in TARGETS:
        loops = {**results.loops(target), **loops}
    worst: dict[str, tuple[int, str]] = {}
    for planned in plans:
        for work in planned.work:
            found = steps_of(work, loops.get(work.kernel))
            if found > max(MOST_STEPS, worst.get(work.kernel.entry, (0, ""))[0]):
                worst[work.kernel.entry] = found, f"{planned.model} on {planned.profile.name}"
    for entry, (steps, where) in sorted(worst.items()):
        yield f"{entry}: {steps} steps of a work-item, {where}"


def steps_of(work: Work, loop: Loop | None) -> int:
    """Estimates the loop steps per work-item, from operations or bytes.

    Args:
        loop: Multiplications per step; None if unknown, to estimate from bytes.
    """
    items = max(1.0, work.groups * work.items)
    if loop is not None and work.flops:
        products = products_of(work.kernel)
        flops = work.flops * products / _UNIT_SHARE if products else work.flops
        return round(flops / (2 * items * max(1, loop.multiplied)))
    return round(work.nbytes / (_FLOAT_BYTES * items))

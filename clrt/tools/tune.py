"""Finds the fastest tunables of kernels on a device, for `clrt tune`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from math import exp, log
from statistics import fmean

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import KernelBuildError, OutOfMemoryError
from clrt.ir.builder import Builder
from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.op import ElementwiseInstruction
from clrt.kernels.tuned import TUNED, TunedKernel
from clrt.kernels.tuning_records import record_for
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.ops.norm.softmax import Softmax
from clrt.ops.pointwise.table import Add, Gelu
from clrt.plan.steps import DeviceStep
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.execution import run_and_hold
from clrt.runtime.model.model import Model
from clrt.util.fast_dataclass import dataclass

Shapes = Mapping[str, tuple[int, ...]]
# Maximum ratio of a candidate's time to the best time so far for it to count as faster; ratios
# above are noise.
_GAIN = 0.98
# Timed rounds per comparison, after one that is not timed.
_TURNS = 5


@dataclass(frozen=True)
class Tuned:
    """Result of tuning one kernel.

    Attributes:
        kernel: Entry point of the kernel.
        before: Values of the tunables before tuning, by macro.
        after: Fastest values of the tunables, by macro; equal to `before` if none was faster.
        ratio: Time after tuning divided by time before; the geometric mean over the sets of input
            shapes.
    """

    kernel: str
    before: Mapping[str, int]
    after: Mapping[str, int]
    ratio: float


@dataclass
class Tuner:
    """Tunes the kernels of a model by coordinate descent, the costliest kernel first.

    Runs with the candidate's and with the best tunables alternate, so that a changing clock
    frequency affects both.

    Attributes:
        model: Model whose kernels are tuned.
        shapes: Sets of input shapes to measure at, all with the same weight.
        budget_s: Seconds after which no other candidate is tried. A KeyboardInterrupt also ends the
            search.
        progress: Called with the seconds spent and the candidate being tried.
        kept: Entry points of kernels that are not tuned.
    """

    model: Model
    shapes: Sequence[Shapes]
    budget_s: float = 60.0
    progress: Callable[[float, str], None] = lambda spent, what: None
    kept: Collection[str] = ()
    _start: float = field(default_factory=time.perf_counter)

    def run(self) -> list[Tuned]:
        """Tunes each kernel that the model uses and that has tunables to choose.

        Returns:
            One result per kernel, the costliest kernel first.
        """
        bound = self._bind({})
        tunable = [e for e, kernel in TUNED.items() if kernel.choices and e not in self.kept]
        used = [e for e in tunable if _uses(bound, e)]
        used.sort(key=lambda entry: -sum(b.seconds(entry) for b in bound))
        return [self._tune(TUNED[e], share=(i + 1) / len(used)) for i, e in enumerate(used)]

    def _tune(self, kernel: TunedKernel, share: float) -> Tuned:
        """Searches the fastest tunables of a kernel, changing one macro at a time.

        Args:
            kernel: The kernel.
            share: Fraction of `budget_s` at whose end the search stops, counted from the start of
                all tuning.
        """
        caps = self.model.device.caps
        before = best = kernel.with_record(record_for(kernel.entry, caps))
        bound = self._bind({kernel.entry: best})
        ratio, improved = 1.0, True
        tried = [best]
        while improved:
            improved = False
            for candidate in _neighbours(kernel, best, caps):
                if self._spent() > self.budget_s * share:
                    return Tuned(kernel.entry, before, best, ratio)
                if candidate in tried:
                    continue
                tried.append(candidate)
                self.progress(self._spent(), f"{kernel.entry} {_text(candidate, before)}")
                try:
                    gain, plans = self._compare(kernel.entry, candidate, bound)
                except KeyboardInterrupt:
                    self.budget_s = 0.0
                    continue
                if gain < _GAIN:
                    best, bound, ratio, improved = candidate, plans, ratio * gain, True
        return Tuned(kernel.entry, before, best, ratio)

    def _bind(self, tunables: Mapping[str, Mapping[str, int]]) -> list[BoundPlan]:
        """Binds a plan for each set of input shapes, and runs it once.

        Args:
            tunables: Values of `T_` macros by kernel entry point, in place of the tuning records.
        """
        plans = [self.model.bind(shapes, tunables) for shapes in self.shapes]
        for plan, shapes in zip(plans, self.shapes, strict=True):
            self._fill(plan, shapes)
        return plans

    def _compare(
        self, entry: str, candidate: Mapping[str, int], best: Sequence[BoundPlan]
    ) -> tuple[float, list[BoundPlan]]:
        """Measures a candidate against the best tunables so far.

        Args:
            entry: Entry point of the kernel.
            candidate: Values of the kernel's tunables to try, by macro.
            best: Plans bound with the best tunables, one per set of input shapes.

        Returns:
            (time with the candidate divided by time with the best tunables, plans bound with the
            candidate). (infinity, []) if the candidate cannot run.
        """
        ratios = []
        try:
            plans = self._bind({entry: candidate})
            for plan, best_plan in zip(plans, best, strict=True):
                entries = {entry, *_changed_kernels(plan, best_plan)}
                times = [
                    (sum(map(plan.seconds, entries)), sum(map(best_plan.seconds, entries)))
                    for _ in range(_TURNS + 1)
                ]
                # The first round compiles and packs.
                ratios.append(log(min(a for a, _ in times[1:]) / min(b for _, b in times[1:])))
        except (KernelBuildError, OutOfMemoryError):
            return float("inf"), []
        return exp(fmean(ratios)), plans

    def _fill(self, plan: BoundPlan, shapes: Shapes) -> None:
        """Runs a plan on zeros of `shapes`: old subnormal numbers in its arena would be slow."""
        feeds = {s.name: np.zeros(shapes[s.name], s.dtype.numpy) for s in self.model.inputs}
        run_and_hold(plan, feeds)

    def _spent(self) -> float:
        return time.perf_counter() - self._start


def _changed_kernels(plan: BoundPlan, other: BoundPlan) -> list[str]:
    """Returns the entry points of kernels whose total FLOPs differ between two plans.

    FLOPs differ if launches of a tuned kernel take over the work of other kernels.
    """
    work = []
    for bound in (plan, other):
        flops: Counter[str] = Counter()
        for step in bound.plan.steps:
            for launch in step.launches if isinstance(step, DeviceStep) else ():
                flops[launch.kernel.entry] += launch.flops
        work.append(flops)
    return [e for e in work[0].keys() | work[1].keys() if work[0][e] != work[1][e]]


def _uses(bound: Sequence[BoundPlan], entry: str) -> bool:
    """Returns whether any of the plans launches the kernel with entry point `entry`."""
    launches = (x for b in bound for s in b.plan.steps for x in getattr(s, "launches", ()))
    return any(x.kernel.entry == entry for x in launches)


def _neighbours(
    kernel: TunedKernel, best: Mapping[str, int], caps: DeviceCaps
) -> Iterator[dict[str, int]]:
    """Yields the candidates that differ from the best tunables in the value of one macro.

    Args:
        kernel: Kernel that is tuned.
        best: Best values of its tunables so far, by macro.
        caps: Capabilities of the device.
    """
    for macro, values in kernel.choices.items():
        for value in values:
            if value != best[macro] and (macro != "T_VW" or value <= caps.float_lanes):
                yield {**best, macro: value}


def _text(tunables: Mapping[str, int], before: Mapping[str, int]) -> str:
    return " ".join(f"{k}={v}" for k, v in tunables.items() if v != before[k])


def encoder_layer(hidden: int = 768, heads: int = 12) -> Graph:
    """Builds a transformer encoder layer with random weights; `clrt tune` uses it by default.

    Args:
        hidden: Number of elements of a hidden state.
        heads: Number of attention heads.
    """
    rng = np.random.default_rng(0)
    shape = (symbol("batch"), symbol("sequence"), hidden)
    build = Builder()
    add, x = build.add, build.input("x", DType.FLOAT32, shape)

    def weight(*dims: int) -> Value:
        return build.constant((rng.standard_normal(dims) * 0.02).astype(np.float32))

    def dense(
        value: Value, k: int, n: int, *after: ElementwiseInstruction, extra: tuple[Value, ...] = ()
    ) -> Value:
        op = FusedMatMul(steps=(ElementwiseInstruction(Add(), (0, 1)), *after))
        return add(op, value, weight(k, n), weight(n), *extra)

    residual = ElementwiseInstruction(Add(), (3, 2))
    size = hidden // heads
    embedded = add(LayerNormalization(), x, weight(hidden))
    qkv = dense(embedded, hidden, 3 * hidden)
    attention = FusedAttention.plain(heads, size, q_offset=0, k_offset=hidden, v_offset=2 * hidden)
    mixed = dense(add(attention, qkv, qkv, qkv), hidden, hidden, residual, extra=(embedded,))
    normal = add(LayerNormalization(), mixed, weight(hidden))
    wide = dense(normal, hidden, 4 * hidden, ElementwiseInstruction(Gelu(), (2,)))
    y = add(Softmax(), dense(wide, 4 * hidden, hidden, residual, extra=(normal,)))
    return build.graph("encoder_layer", [x], [y], ["y"])

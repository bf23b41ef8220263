"""Finds the tunables of kernels that are fastest on a device; `clrt tune` is its command."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import fmean

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import KernelBuildError, OutOfMemoryError
from clrt.ir.builder import Builder
from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.op import ElementwiseStep
from clrt.kernels.tuned import TUNED, TunedKernel
from clrt.kernels.tuning_records import record_for
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.ops.norm.softmax import Softmax
from clrt.ops.pointwise.table import Add, Gelu
from clrt.plan.steps import DeviceStep
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.execution import Execution
from clrt.runtime.model.model import Model

Shapes = Mapping[str, tuple[int, ...]]
# A gain below this is noise.
_GAIN = 0.98
_TURNS = 5


@dataclass(frozen=True)
class Tuned:
    """The result for one kernel.

    Attributes:
        before, after: Its tunables; equal where nothing was faster.
        ratio: Time after over time before: the geometric mean over the shapes.
    """

    kernel: str
    before: Mapping[str, int]
    after: Mapping[str, int]
    ratio: float


@dataclass
class Tuner:
    """Coordinate descent over each kernel's choices, the costliest kernel first.

    Candidate and best take turns, so that a changing clock frequency is fair to both.

    Attributes:
        shapes: Sets of input shapes; all have the same weight.
        budget_s: Seconds after which no further candidate is tried. A KeyboardInterrupt ends
            them early.
        progress: Called with the seconds spent and the candidate being tried.
        kept: Kernels, by entry point, that stay as they are.
    """

    model: Model
    shapes: Sequence[Shapes]
    budget_s: float = 60.0
    progress: Callable[[float, str], None] = lambda spent, what: None
    kept: Collection[str] = ()
    _start: float = field(default_factory=time.perf_counter)

    def run(self) -> list[Tuned]:
        """The best tunables of each kernel that the model uses and that has choices."""
        bound = self._bind({})
        wanted = [e for e, kernel in TUNED.items() if kernel.choices and e not in self.kept]
        used = [e for e in wanted if _uses(bound, e)]
        used.sort(key=lambda entry: -sum(b.seconds(entry) for b in bound))
        return [self._tune(TUNED[e], share=(i + 1) / len(used)) for i, e in enumerate(used)]

    def _tune(self, kernel: TunedKernel, share: float) -> Tuned:
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
        """A plan for each set of shapes, with weights packed for these tunables; run once."""
        plans = [self.model.bind(shapes, tunables) for shapes in self.shapes]
        for plan, shapes in zip(plans, self.shapes, strict=True):
            self._fill(plan, shapes)
        return plans

    def _compare(
        self, entry: str, candidate: Mapping[str, int], best: Sequence[BoundPlan]
    ) -> tuple[float, list[BoundPlan]]:
        """The candidate's time over that of the best, and the candidate's plans.

        The time is infinite where the candidate cannot run here.
        """
        ratios = []
        try:
            plans = self._bind({entry: candidate})
            for ours, theirs in zip(plans, best, strict=True):
                entries = {entry, *_moved(ours, theirs)}
                times = [
                    (sum(map(ours.seconds, entries)), sum(map(theirs.seconds, entries)))
                    for _ in range(_TURNS + 1)
                ]
                # The first turn compiled and packed.
                ratios.append(log(min(a for a, _ in times[1:]) / min(b for _, b in times[1:])))
        except (KernelBuildError, OutOfMemoryError):
            return float("inf"), []
        return exp(fmean(ratios)), plans

    def _fill(self, plan: BoundPlan, shapes: Shapes) -> None:
        """Fills the arena with ordinary numbers. Leftovers may be subnormal, which is slow."""
        feeds = {s.name: np.zeros(shapes[s.name], s.dtype.numpy) for s in self.model.inputs}
        Execution(plan, feeds, {}).run()

    def _spent(self) -> float:
        return time.perf_counter() - self._start


def _moved(ours: BoundPlan, theirs: BoundPlan) -> list[str]:
    """Kernels with different work in the two plans: a launch may do the work of other nodes."""
    work = []
    for bound in (ours, theirs):
        flops: Counter[str] = Counter()
        for step in bound.plan.steps:
            for launch in step.launches if isinstance(step, DeviceStep) else ():
                flops[launch.kernel.entry] += launch.flops
        work.append(flops)
    return [e for e in work[0].keys() | work[1].keys() if work[0][e] != work[1][e]]


def _uses(bound: Sequence[BoundPlan], entry: str) -> bool:
    launches = (x for b in bound for s in b.plan.steps for x in getattr(s, "launches", ()))
    return any(x.kernel.entry == entry for x in launches)


def _neighbours(
    kernel: TunedKernel, best: Mapping[str, int], caps: DeviceCaps
) -> Iterator[dict[str, int]]:
    """Tunables that differ from the best in one macro."""
    for macro, values in kernel.choices.items():
        for value in values:
            if value != best[macro] and (macro != "T_VW" or value <= caps.float_lanes):
                yield {**best, macro: value}


def _text(tunables: Mapping[str, int], before: Mapping[str, int]) -> str:
    return " ".join(f"{k}={v}" for k, v in tunables.items() if v != before[k])


def encoder_layer(hidden: int = 768, heads: int = 12) -> Graph:
    """A transformer layer with random weights, tuned where no model is given."""
    rng = np.random.default_rng(0)
    shape = (symbol("batch"), symbol("sequence"), hidden)
    build = Builder()
    add, x = build.add, build.input("x", DType.FLOAT32, shape)

    def weight(*dims: int) -> Value:
        return build.constant((rng.standard_normal(dims) * 0.02).astype(np.float32))

    def dense(
        value: Value, k: int, n: int, *after: ElementwiseStep, extra: tuple[Value, ...] = ()
    ) -> Value:
        op = FusedMatMul(steps=(ElementwiseStep(Add(), (0, 1)), *after))
        return add(op, value, weight(k, n), weight(n), *extra)

    residual = ElementwiseStep(Add(), (3, 2))
    size = hidden // heads
    embedded = add(LayerNormalization(), x, weight(hidden))
    qkv = dense(embedded, hidden, 3 * hidden)
    attention = FusedAttention.plain(heads, size, q_offset=0, k_offset=hidden, v_offset=2 * hidden)
    mixed = dense(add(attention, qkv, qkv, qkv), hidden, hidden, residual, extra=(embedded,))
    normal = add(LayerNormalization(), mixed, weight(hidden))
    wide = dense(normal, hidden, 4 * hidden, ElementwiseStep(Gelu(), (2,)))
    y = add(Softmax(), dense(wide, 4 * hidden, hidden, residual, extra=(normal,)))
    return build.graph("encoder_layer", [x], [y], ["y"])

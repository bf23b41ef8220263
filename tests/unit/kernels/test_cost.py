"""Choice of kernel variants by predicted cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clrt.device.caps import DeviceCaps
from clrt.errors import UnsupportedError
from clrt.ir.graph import Node
from clrt.kernels.cost import Efficiency, PlainEfficiency, WorkEstimate, rates_of, seconds, work_of
from clrt.kernels.variant import Variant, by_cost, runs_as
from clrt.ops import REGISTRY
from clrt.ops.conv.conv import Conv
from clrt.plan.steps import DeviceStep
from tests.harness import plan_graph, sample_graph
from tests.ops.samples import Sample

CPU = DeviceCaps("p", "cpu", "v", "1", "cpu", compute_units=2, float_lanes=16)
NODE = Node("n", Conv(), [], [])


def _emit(node: Node, ctx: object) -> list[object]:
    return []


def _variant(
    name: str, work: WorkEstimate, speed: type[Efficiency] = Efficiency, why: str | None = None
) -> Variant:
    return Variant(name, _emit, lambda n, c: why, speed=speed, work=lambda n, c: work)  # type: ignore[arg-type]


def _order(*variants: Variant) -> list[str]:
    return [v.name for v, _ in by_cost(variants, NODE, CPU)]


def test_variants_are_ordered_by_predicted_cost() -> None:
    little, much = WorkEstimate(1000), WorkEstimate(1 << 30)
    assert _order(_variant("a", much), _variant("b", little)) == ["b", "a"]
    assert _order(_variant("a", little, PlainEfficiency), _variant("b", little)) == ["b", "a"]
    assert _order(_variant("a", WorkEstimate(0, 0, 2)), _variant("b", WorkEstimate(0))) == [
        "b",
        "a",
    ]
    assert _order(_variant("a", WorkEstimate(0, 1 << 30)), _variant("b", much)) == ["b", "a"]


def test_equal_costs_keep_declaration_order() -> None:
    assert _order(*(_variant(n, WorkEstimate(5)) for n in "cab")) == ["c", "a", "b"]


def test_unsupported_variants_come_first_with_reason() -> None:
    variants = [_variant("a", WorkEstimate(9)), _variant("b", WorkEstimate(1), why="no")]
    assert [(v.name, r) for v, r in by_cost(variants, NODE, CPU)] == [("b", "no"), ("a", None)]
    runs_as("a", variants, NODE, CPU)
    with pytest.raises(UnsupportedError, match="no"):
        runs_as("b", variants, NODE, CPU)


def test_rates_scale_with_compute_units() -> None:
    for kind in ("cpu", "gpu"):
        small = replace(CPU, kind=kind)
        large = replace(small, compute_units=8)
        work = WorkEstimate(1 << 40, 1 << 30)
        assert rates_of(large).flops == 4 * rates_of(small).flops
        assert seconds(work, Efficiency(), large) < seconds(work, Efficiency(), small)


def test_variants_of_equal_work_are_listed_fastest_first() -> None:
    for cls in REGISTRY.all_classes().values():
        if all(v.work is work_of for v in cls.variants):
            speeds = [(v.speed.compute, v.speed.memory) for v in cls.variants]
            assert speeds == sorted(speeds, reverse=True), cls.name


def _taken(x: tuple[int, ...], w: tuple[int, ...]) -> str:
    op = Conv(group=x[1] // w[1])
    sample = Sample(op, tuple(np.zeros(s, np.float32) for s in (x, w)))
    (step,) = plan_graph(sample_graph(sample), CPU).steps
    assert isinstance(step, DeviceStep)
    return step.variant


@pytest.mark.parametrize("positions", [1, 16, 1000])
def test_depthwise_conv_variant_is_independent_of_size(positions: int) -> None:
    """Equal choices for all sizes: a new size compiles no kernel."""
    assert _taken((1, 1, 255 + positions), (258, 1, 256)) == "im2col_gemm_cpu"
    assert _taken((1, 144, 8 + positions), (144, 1, 9)) == "depthwise_cpu"
    assert _taken((1, 64, 8 + positions), (128, 1, 9)) == "depthwise_cpu"

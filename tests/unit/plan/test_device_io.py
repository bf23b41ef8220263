"""Values in the caller's device memory, and copies that donation avoids."""

from __future__ import annotations

from clrt.device.caps import DeviceCaps
from clrt.ir.parse import parse_graph
from clrt.ops import REGISTRY
from clrt.plan.device_io import HOST_ONLY, DeviceIo
from clrt.plan.make_plan import make_plan, step_lifetimes
from clrt.plan.plan import Plan

CPU = DeviceCaps("p", "n", "v", "1", "cpu")
# A row for each of two samples goes into a cache, which another node reads before.
CACHE = """graph "g" (%cache: float32[2,8,4], %rows: float32[2,1,4], %at: int64[2]) {
  %next: float32[2,8,4] = TensorScatter{axis=-2, mode="linear"}(%cache, %rows, %at) @"scatter"
  %y: float32[8,2,4] = Transpose{perm=[1, 0, 2]}(%next) @"turn"
  return %next as "next", %y as "y"
}
"""
BOTH = frozenset({"next", "y"})


def planned(contract: DeviceIo) -> Plan:
    return make_plan(parse_graph(CACHE, REGISTRY), CPU, lambda _: {}, contract)


def external(plan: Plan) -> list[str]:
    return [v.name for v in plan.external]


def test_plan_for_host_inputs_and_outputs_keeps_all_values_in_arena() -> None:
    plan = planned(HOST_ONLY)
    names = {v.name for v, _ in step_lifetimes(plan) if hasattr(v, "name")}
    assert external(plan) == [] and names == {"cache", "rows", "at", "y"}
    assert plan.launches == 2  # the arena's cache is the plan's to write to


def test_undonated_device_input_is_copied_before_update() -> None:
    plan = planned(DeviceIo(frozenset({"cache"}), frozenset(), BOTH))
    assert external(plan) == ["cache", "next", "y"]
    assert plan.launches == 3
    first = plan.steps[0]
    assert [x.copy is not None for x in first.launches] == [True, False]


def test_donated_input_becomes_output() -> None:
    plan = planned(DeviceIo(frozenset({"cache"}), frozenset({"cache"}), BOTH))
    assert external(plan) == ["cache", "y"]
    assert plan.launches == 2
    next_, _ = plan.graph.outputs
    assert plan.root(next_).name == "cache"
    assert plan.arena.nbytes == 2 * 128  # the row and the places to write to

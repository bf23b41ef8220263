"""Loops unrolled into the surrounding plan, against ONNX Runtime and host-driven loops."""

from __future__ import annotations

from typing import Any

import pytest

import clrt
from clrt.ops.control import kernel_loop
from clrt.ops.control.control_flow import Loop
from clrt.ops.decompositions.lowering_rules import unroll_loops
from clrt.plan.steps import launches_of
from clrt.runtime.execution import planner as plans
from clrt.runtime.opencl.devices import DeviceInfo
from tests.models.onnx_text import DEVICES, agree, normal, parsed, same

# As tf2onnx writes a recurrent cell: a counter is carried, and a row may be masked.
RECURRENT = """
g (float[t, n, 3] x, bool[t, n, 1] mask) => (float[n, 3] last, float[k, n, 3] all) {
  zero = Constant<value = int32 {0}>()
  always = Constant<value = bool {1}>()
  weights = Constant<value = float[3, 3] {0.5, -1.0, 0.25, 0.0, 2.0, 1.0, -0.5, 0.75, 1.0}>()
  axes = Constant<value = int64[1] {0}>()
  dims = Shape(x)
  first = Constant<value = int64 {0}>()
  t64 = Gather(dims, first)
  t32 = Cast<to = 6>(t64)
  start = ReduceSum<keepdims = 0>(x, axes)
  end, last, all = Loop (, always, zero, start) <
    body = turn (int64 i, bool go, int32 c, float[m, 3] h)
      => (bool more, int32 d, float[p, 3] next, float[q, 3] row)
    {
      one = Constant<value = int32 {1}>()
      d = Add(c, one)
      more = Less(d, t32)
      xi = Gather(x, c)
      mi = Gather(mask, c)
      given = MatMul(xi, weights)
      product = MatMul(h, weights)
      sum = Add(product, given)
      new = Tanh(sum)
      kept = Cast<to = 1>(mi)
      other = Not(mi)
      held = Cast<to = 1>(other)
      a = Mul(kept, new)
      b = Mul(held, h)
      next = Add(a, b)
      row = Identity(next)
    }
  >
}
"""


def _recurrent(t: int, n: int) -> dict[str, Any]:
    return {"x": normal(1, t, n, 3), "mask": normal(2, t, n, 1) > 0}


def same_all(found: Any, wanted: Any) -> None:
    """Compares the outputs of two runs."""
    for name in wanted:
        same(found[name], wanted[name])


@DEVICES
def test_counted_loop_is_one_plan(device: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_loop, "_MAX_WORK", -1)
    feeds = [_recurrent(t, n) for t, n in ((1, 1), (7, 2), (4, 2), (7, 3), (20, 1))]
    ours = agree(parsed(RECURRENT), device, *feeds)
    (loop,) = (n.op for n in ours._graph.nodes if isinstance(n.op, Loop))
    names = {str(v.shape[0]) for v in (*loop.body.inputs, *loop.body.outputs) if v.type.rank == 2}
    assert names == {"n"}  # what it carries has the rows that it began with
    stages = ours._runner.planner.kept.values()
    assert len(stages) == len(feeds)
    # Of all rows: what is made of the mask, and the product with them. An iteration: the other
    # product, two rows of the mask, the arithmetic, and a row of the stack.
    assert all(stage.plan.launches <= 5 * 20 + 8 for stage in stages)
    products = [
        sum("gemm" in x.kernel.entry for x in launches_of(stage.plan.steps)) for stage in stages
    ]
    assert products == [t + 1 for t in (1, 7, 4, 7, 20)]


@DEVICES
def test_long_loop_is_unrolled_for_repeated_shapes(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unroll_loops, "_FEW_NODES", 0)
    ours = clrt.load(parsed(RECURRENT), device=device.index)
    feed, planner = _recurrent(6, 2), ours._runner.planner
    wanted = ours.run(feed)
    for _ in range(plans._FEW_RUNS - 2):
        same_all(ours.run(feed), wanted)
        assert any(stage.graph_break is not None for stage in planner.kept.values())
    same_all(ours.run(feed), wanted)
    assert all(stage.graph_break is None for stage in planner.kept.values())
    before = planner.kept.host_bytes
    first = planner.kept.latest
    assert first is not None
    same_all(ours.run(feed), wanted)
    assert planner.kept.latest is not None and planner.kept.latest[1] is first[1]
    assert planner.kept.host_bytes == before


@DEVICES
def test_loop_stays_on_host_if_plan_exceeds_memory(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unroll_loops, "_FEW_NODES", 0)
    ours = clrt.load(parsed(RECURRENT), device=device.index)
    feed, planner = _recurrent(3, 2), ours._runner.planner
    plan = planner.plan

    def refuse(*args: Any, **settings: Any) -> Any:
        if settings.get("repeated"):
            raise clrt.OutOfMemoryError("no room", 2, 1)
        return plan(*args, **settings)

    monkeypatch.setattr(planner, "plan", refuse)
    wanted = ours.run(feed)
    for _ in range(plans._FEW_RUNS):
        same_all(ours.run(feed), wanted)
    assert any(stage.graph_break is not None for stage in planner.kept.values())


@DEVICES
@pytest.mark.parametrize("few", (0, 512), ids=("host", "plan"))
@pytest.mark.parametrize(
    ("limit", "start", "end"),
    (("5", 1, 3), ("2", 1, 9), ("4", 0, 9), ("0", 1, 9), ("", 1, 4), ("3", 1, -1)),
)
def test_loop_end_conditions_match_onnxruntime(
    limit: str, start: int, end: int, few: int, device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loop ends by trip count, by condition, or before the first iteration; its state grows."""
    monkeypatch.setattr(unroll_loops, "_FEW_NODES", few)
    most = f"most = Constant<value = int64 {{{limit}}}>()" if limit else ""
    model = parsed(
        f"""
        g (float[n] x) => (float[m] y, int64[k] rows, int64 count) {{
          {most}
          go = Constant<value = bool {{{start}}}>()
          zero = Constant<value = int64 {{0}}>()
          y, count, rows = Loop ({"most" if limit else ""}, go, x, zero) <
            body = b (int64 i, bool on, float[a] v, int64 c)
              => (bool more, float[b] w, int64 d, int64 row)
            {{
              one = Constant<value = int64 {{1}}>()
              d = Add(c, one)
              row = Mul(d, d)
              axis = Constant<value = int64[1] {{0}}>()
              to = Unsqueeze(d, axis)
              part = Slice(x, axis, to)
              w = Concat<axis = 0>(v, part)
              end = Constant<value = int64 {{{end}}}>()
              more = Less(d, end)
            }}
          >
        }}
        """
    )
    ours = agree(model, device, {"x": normal(1, 4)})
    assert few == 0 or start == 0 or limit == "0" or len(ours._runner.planner.kept) == 1

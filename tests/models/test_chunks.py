"""Loops of unknown length at planning: several iterations run as one graph (a chunk)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.ops.control import chunks, kernel_loop
from clrt.ops.control.control_flow import Loop
from clrt.ops.decompositions.lowering_rules import unroll_loops
from clrt.runtime.execution.graph_run import GraphRun
from clrt.runtime.opencl.devices import DeviceInfo
from tests.models.onnx_text import DEVICES, agree, normal, parsed

# Its condition is computed, and holds until a sum passes a limit; rows are stacked.
TESTED = """
g (int64 n, float[4] x, float limit) => (float[4] last, float[k, 4] all, int64[k] numbers) {
  always = Constant<value = bool {1}>()
  last, all, numbers = Loop (n, always, x) <
    body = turn (int64 i, bool go, float[4] v)
      => (bool more, float[4] next, float[4] row, int64 number)
    {
      one = Constant<value = float {1.0}>()
      next = Add(v, one)
      most = ReduceMax<keepdims = 0>(next)
      more = Less(most, limit)
      row = Mul(next, v)
      number = Add(i, i)
    }
  >
}
"""
COUNTED = TESTED.replace("more = Less(most, limit)", "more = Identity(go)")
# What it carries grows.
GROWING = """
g (int64 n, float[1] x) => (float[k] last) {
  always = Constant<value = bool {1}>()
  last = Loop (n, always, x) <
    body = turn (int64 i, bool go, float[m] v) => (bool more, float[p] next)
    {
      one = Constant<value = float[1] {1.0}>()
      next = Concat<axis = 0>(v, one)
      more = Identity(go)
    }
  >
}
"""
# It reads at a place that is there as long as the condition holds alone.
FOLLOWING = """
g (float[20] x) => (float last) {
  always = Constant<value = bool {1}>()
  zero = Constant<value = float {0.0}>()
  first = Constant<value = int64 {0}>()
  end, last = Loop (, always, first, zero) <
    body = turn (int64 i, bool go, int64 c, float v) => (bool more, int64 d, float next)
    {
      one = Constant<value = int64 {1}>()
      limit = Constant<value = float {6.5}>()
      at = Gather(x, c)
      next = Add(v, at)
      more = Less(next, limit)
      d = Add(c, one)
    }
  >
}
"""


@pytest.fixture(autouse=True)
def _as_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables loops in kernels."""
    monkeypatch.setattr(kernel_loop, "_MAX_WORK", -1)


def _feeds(n: int, limit: float) -> dict[str, Any]:
    return {"n": np.array(n), "x": normal(1, 4), "limit": np.array(limit, np.float32)}


def _made(model: clrt.Model) -> list[int]:
    """Returns the chunk sizes, in iterations, that a model has built."""
    (loop,) = (n.op for n in model._graph.nodes if isinstance(n.op, Loop))
    notes: Mapping[Any, Any] = {}
    for graph, found in model._runner.planner.notes.items():
        if len(graph.inputs) == len(loop.body.inputs):
            notes = found
    return sorted(k for c in notes.values() for k, g in c._graphs.items() if g is not None)


@DEVICES
def test_loop_with_computed_condition_runs_in_chunks(device: DeviceInfo) -> None:
    feeds = [
        _feeds(n, limit)
        for n, limit in ((500, 30), (500, 30), (500, 3), (500, 25), (30, 200), (0, 9), (9, 1e9))
    ]
    ours = agree(parsed(TESTED), device, *feeds)
    made = _made(ours)
    assert {8, 16, 32} <= set(made) and all(k & (k - 1) == 0 for k in made)


@DEVICES
def test_counted_loop_runs_in_chunks(device: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, run = [0], GraphRun.run

    def counting(self: GraphRun, *args: Any) -> Any:
        runs[0] += 1
        return run(self, *args)

    feeds = [_feeds(n, 0) for n in (37, 37, 3, 37, 37, 37, 37)]
    ours = agree(parsed(COUNTED), device, *feeds)
    assert _made(ours)[-1] == 32
    monkeypatch.setattr(GraphRun, "run", counting)
    ours.run(feeds[0])
    assert runs[0] == 1 and _made(ours)[-1] == 37  # since it came again and again


@DEVICES
@pytest.mark.parametrize(("text", "name"), [(GROWING, "n"), (FOLLOWING, "x")])
def test_unrepeatable_loop_bodies_run_without_chunks(
    device: DeviceInfo, text: str, name: str
) -> None:
    feeds = {"n": np.array(20), "x": normal(1, 1)} if name == "n" else {"x": np.ones(20, "f")}
    ours = agree(parsed(text), device, feeds, feeds)
    assert not _made(ours)


def test_loop_chunk_size_is_limited_by_node_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_MAX_NODES", 40)
    with clrt.load(parsed(COUNTED), device="portable") as model:
        found = [model.run(_feeds(200, 0))["numbers"] for _ in range(2)]
        assert max(_made(model)) <= 8
    for numbers in found:
        np.testing.assert_array_equal(numbers, 2 * np.arange(200))


@DEVICES
def test_heavy_loop_bodies_run_without_chunks(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "_MAX_SURPLUS_BYTES", 10)
    assert not _made(agree(parsed(TESTED), device, _feeds(40, 1e9)))


@DEVICES
def test_loop_chunk_size_is_limited_by_output_bytes(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "_MAX_OUTPUT_BYTES", 16 * 8 * 4)
    ours = agree(parsed(COUNTED), device, *[_feeds(50, 0)] * 6)
    assert ours._runner.planner.notes


SCANNED = """
g (float[3] s, float[2, n, 3] x, float[n, 2] z) => (float[3] t, float[2, 3, n] rows, float[n, 2] y)
{
  t, rows, y = Scan<num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
      scan_output_axes = [-1, 0], scan_output_directions = [0, 1],
    body = b (float[3] u, float[2, 3] xi, float[2] zi)
      => (float[3] v, float[2, 3] row, float[2] other)
    {
      axes = Constant<value = int64[1] {0}>()
      half = Constant<value = float {0.5}>()
      sums = ReduceSum<keepdims = 0>(xi, axes)
      part = Mul(u, half)
      v = Add(part, sums)
      row = Sub(xi, u)
      other = Neg(zi)
    }>(s, x, z)
}
"""


@DEVICES
def test_scan_runs_in_chunks(device: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unroll_loops, "_FEW_NODES", 0)
    feeds = [
        {"s": normal(1, 3), "x": normal(2, 2, n, 3), "z": normal(3, n, 2)} for n in (40, 40, 9, 33)
    ]
    ours = agree(parsed(SCANNED), device, *feeds)
    sizes = [
        k
        for notes in ours._runner.planner.notes.values()
        for found in notes.values()
        if isinstance(found, chunks.RepeatedBodies)
        for k in found._graphs
    ]
    assert max(sizes) >= 16

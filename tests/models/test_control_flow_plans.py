"""Plans of If, Loop and Scan: graph breaks, and plans shared by iterations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import clrt
import clrt.runtime.execution.planner as plans_module
from clrt.ops.control.control_flow import Loop
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.execution import Execution
from clrt.runtime.opencl.devices import DeviceInfo
from tests.models.onnx_text import DEVICES, agree, normal, parsed, same


@DEVICES
def test_loop_with_growing_state_reuses_kept_plans(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parsed(
        """
        g (float[n] x, int64 limit) => (float[m] y) {
          y = Loop (limit, , x) <
            body = b (int64 i, bool go, float[k] v) => (bool more, float[j] w) {
              more = Identity(go)
              w = Concat<axis = 0>(v, x)
            }
          >
        }
        """
    )
    ours = agree(model, device, *({"x": normal(1, 3), "limit": np.array(k)} for k in (0, 1, 4)))
    before = ours._session.programs.builds
    ours.run({"x": normal(1, 3), "limit": np.array(6)})
    assert ours._session.programs.builds == before
    # Each of many turns has a plan of its own, which is there the next time.
    long = {"x": normal(1, 3), "limit": np.array(80)}
    wanted = ours.run(long)["y"]
    plans = ours._runner.planner.kept
    kept = {id(stage) for stage in plans.values()}
    np.testing.assert_array_equal(ours.run(long)["y"], wanted)
    assert len(kept) > 80 and {id(stage) for stage in plans.values()} == kept
    monkeypatch.setattr(plans_module, "MAX_PLAN_BYTES", 0)
    ours.run({"x": normal(1, 4), "limit": np.array(1)})
    assert len(plans) == plans_module.MIN_CACHED_PLANS


@DEVICES
def test_loop_invariant_state_becomes_constant(device: DeviceInfo) -> None:
    """TensorFlow passes weights through loops like this; folding Sqrt makes them constant."""
    model = parsed(
        """
        g (float[2, 2] x, float[2] shift, int64 limit)
          => (float[2, 2] y, float[2, 2] z, float[k, 2] r)
        {
          squares = Constant<value = float[2, 2] {1.0, 4.0, 0.25, 9.0}>()
          start = Sqrt(squares)
          y, z, r = Loop (limit, , x, start) <
            body = b (int64 i, bool go, float[2, 2] v, float[2, 2] w)
              => (bool more, float[2, 2] u, float[2, 2] same, float[2] row)
            {
              more = Identity(go)
              same = Identity(w)
              product = MatMul(v, w)
              u = Add(product, shift)
              zero = Constant<value = int64[1] {0}>()
              row = ReduceSum<keepdims = 0>(u, zero)
            }
          >
        }
        """
    )
    feeds = ({"x": normal(1, 2, 2), "shift": normal(2, 2), "limit": np.array(k)} for k in (0, 1, 3))
    ours = agree(model, device, *feeds)
    (loop,) = (n.op for n in ours._graph.nodes if isinstance(n.op, Loop))
    assert (loop.carried, loop.captures) == (1, 1)


@DEVICES
def test_cheap_if_branches_run_without_reading_condition(
    device: DeviceInfo,
) -> None:
    """TensorFlow's AutoGraph exports `if`, `continue` and `break` in a loop in this form."""
    model = parsed(
        """
        g (float[n, 3] x, int64 limit) => (float[3] total, int64 taken) {
          always = Constant<value = bool {1}>()
          none = Constant<value = int64 {0}>()
          start = Constant<value = float[3] {0.0, 0.0, 0.0}>()
          total, taken = Loop (limit, always, start, none) <
            body = turn (int64 i, bool go, float[3] s, int64 k)
              => (bool more, float[3] t, int64 m)
            {
              row = Gather(x, i)
              sum = ReduceSum<keepdims = 0>(row)
              zero = Constant<value = float {0.0}>()
              rises = Greater(sum, zero)
              t, m = If (rises) <
                then_branch = a () => (float[3] t1, int64 m1) {
                  t1 = Add(s, row)
                  one = Constant<value = int64 {1}>()
                  m1 = Add(k, one)
                },
                else_branch = b () => (float[3] t2, int64 m2) {
                  t2 = Sub(s, row)
                  m2 = Identity(k)
                }
              >
              two = Constant<value = int64 {2}>()
              enough = Greater(m, two)
              more = If (enough) <
                then_branch = c () => (bool stop) { stop = Constant<value = bool {0}>() },
                else_branch = d () => (bool on) { on = Identity(go) }
              >
            }
          >
        }
        """
    )
    feeds = [{"x": normal(k, 9, 3), "limit": np.array(9)} for k in range(3)]
    ours = agree(model, device, *feeds)
    # Of the graph before and behind the loop, and of the loop's.
    assert len(ours._runner.planner.kept) == 3


@DEVICES
def test_mismatched_if_branches_wait_for_condition(device: DeviceInfo) -> None:
    model = parsed(
        """
        g (float[n] x, float[h] z, bool c) => (float[m] y, float[k] w) {
          y = If (c) <
            then_branch = a () => (float[n] u) { u = Exp(x) },
            else_branch = b () => (float[1] v) {
              v = Constant<value = float[1] {2.0}>()
            }
          >
          w = If (c) <
            then_branch = d () => (float[n] p) { p = Add(x, z) },
            else_branch = e () => (float[n] q) { q = Identity(x) }
          >
        }
        """
    )
    x = normal(1, 4)
    fits = {"x": x, "z": x, "c": np.array(True)}
    # The branch that is not taken adds what does not fit.
    agree(model, device, fits, {"x": x, "z": normal(2, 3), "c": np.array(False)})


@DEVICES
def test_loop_body_plan_knows_outer_dims(device: DeviceInfo) -> None:
    """tf.shape(x)[0] in a TensorFlow loop: no iteration reads a value that shapes determine."""
    model = parsed(
        """
        g (float[b, n] x, int64 limit) => (float[b, n] y) {
          shape = Shape(x)
          first = Constant<value = int64[1] {0}>()
          batch = Gather(shape, first)
          always = Constant<value = bool {1}>()
          y = Loop (limit, always, x) <
            body = turn (int64 i, bool go, float[b, n] v) => (bool more, float[b, n] w) {
              more = Identity(go)
              rest = Constant<value = int64[2] {-1, 2}>()
              halves = Concat<axis = 0>(batch, rest)
              pairs = Reshape(v, halves)
              last = Constant<value = int64 {1}>()
              sums = CumSum(pairs, last)
              back = Shape(v)
              w = Reshape(sums, back)
            }
          >
        }
        """
    )
    feeds = [{"x": normal(k, 2 + k, 6), "limit": np.array(3)} for k in range(2)]
    ours = agree(model, device, feeds[0])
    # Of the graph before and behind the loop, and of the loop's.
    assert len(ours._runner.planner.kept) == 3
    agree(model, device, *feeds)


@DEVICES
def test_iteration_dependent_slices_share_plan(device: DeviceInfo) -> None:
    """Paddle writes to a tensor in every iteration; planning takes longer than an iteration."""
    model = parsed(
        """
        g (float[2, n] x, float[2, 2] start, int64 limit) => (float[2, 2] y, float[2, n] z)
        {
          y, z = Loop (limit, , start, x) <
            body = b (int64 i, bool go, float[2, 2] v, float[2, n] w)
              => (bool more, float[2, 2] u, float[2, n] t)
            {
              more = Identity(go)
              one = Constant<value = int64 {1}>()
              two = Constant<value = int64 {2}>()
              line = Constant<value = int64[1] {-1}>()
              one_axis = Constant<value = int64[1] {1}>()
              row = Constant<value = int64[2] {1, 2}>()
              end = Add(i, two)
              first = Reshape(i, line)
              last = Reshape(end, line)
              forwards = Slice(w, first, last, one_axis)
              backwards = Slice(w, last, first, one_axis, line)
              sum = Add(v, forwards)
              u = Sub(sum, backwards)
              places = Range(i, end, one)
              places_row = Reshape(places, row)
              both = Concat<axis = 0>(places_row, places_row)
              t = ScatterElements<axis = 1>(w, both, u)
            }
          >
        }
        """
    )
    ours = agree(
        model, device, {"x": normal(1, 2, 9), "start": normal(2, 2, 2), "limit": np.array(2)}
    )
    plans = len(ours._runner.planner.kept)
    feed = {"x": normal(3, 2, 9), "start": normal(4, 2, 2), "limit": np.array(6)}
    for found, wanted in zip(
        ours.run(feed).values(), onnxruntime.InferenceSession(model).run(None, feed), strict=True
    ):
        same(found, wanted)
    assert len(ours._runner.planner.kept) == plans


@DEVICES
@pytest.mark.parametrize(
    ("mode", "kind", "rows"),
    [
        ("linear", "float", 5),
        ("linear", "float", 1),
        ("nearest", "float", 5),
        ("cubic", "float", 5),
        ("nearest", "uint8", 5),
    ],
)
def test_resize_crops_of_computed_boxes_share_plan(
    device: DeviceInfo, mode: str, kind: str, rows: int
) -> None:
    """tf2onnx exports tf.image.crop_and_resize in this form: a Resize of an image for each box."""
    model = parsed(
        f"""
        g ({kind}[1, 2, h, w] x, float[b, 4] boxes, int64 limit) => ({kind}[b, 1, 2, r, 3] y) {{
          always = Constant<value = bool {{1}}>()
          y = Loop (limit, always) <
            body = turn (int64 i, bool go) => (bool more, {kind}[1, 2, r, 3] crop) {{
              more = Identity(go)
              window = Gather(boxes, i)
              whole = Constant<value = float[2] {{0.0, 0.0}}>()
              ends = Constant<value = float[2] {{1.0, 1.0}}>()
              halves = Constant<value = int64[2] {{2, 2}}>()
              low, high = Split<axis = 0>(window, halves)
              roi = Concat<axis = 0>(whole, low, ends, high)
              sizes = Constant<value = int64[4] {{1, 2, {rows}, 3}}>()
              crop = Resize<mode = "{mode}", extrapolation_value = 7.0,
                coordinate_transformation_mode = "tf_crop_and_resize">(x, roi, , sizes)
            }}
          >
        }}
        """
    )
    dtype, scale = (np.float32, 1) if kind == "float" else (np.uint8, 99)
    boxes = [[0.1, 0.2, 0.7, 0.9], [-0.2, 0.3, 0.5, 1.2], [0.6, 0.6, 0.2, 0.1], [0, 0, 1, 1]]

    def feed(first: int) -> dict[str, Any]:
        x = (np.abs(normal(first, 1, 2, 49, 7)) * scale).astype(dtype)
        chosen = np.array(boxes[first:], np.float32)
        return {"x": x, "boxes": chosen, "limit": np.array(len(chosen))}

    ours = clrt.load(model, device=device.index, strict=True)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    ours.run(feed(0))
    for first in (0, 1):
        (wanted,) = theirs.run(None, feed(first))
        same(ours.run(feed(first))["y"], wanted)
    plans = len(ours._runner.planner.kept)
    moved = feed(1)
    moved["boxes"] = moved["boxes"] * np.float32(0.9)
    (wanted,) = theirs.run(None, moved)
    same(ours.run(moved)["y"], wanted)
    assert len(ours._runner.planner.kept) == plans


@DEVICES
def test_unchanged_loop_state_needs_no_launch(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scripted search stops in this form: a branch returns a constant or the incoming state."""
    model = parsed(
        """
        g (float[2, 3] x, int64 limit) => (float[2, 3] y) {
          holds = Constant<value = bool {1}>()
          start = Exp(x)
          y = Loop (limit, holds, start) <
            body = b (int64 i, bool go, float[2, 3] v) => (bool more, float[2, 3] u) {
              two = Constant<value = int64 {2}>()
              odd = Mod(i, two)
              grows = Cast<to = 9>(odd)
              u = If (grows) <
                then_branch = t () => (float[2, 3] a) { a = Softmax(v) },
                else_branch = e () => (float[2, 3] b) { b = Identity(v) }
              >
              three = Constant<value = int64 {3}>()
              early = Less(i, three)
              more = If (early) <
                then_branch = r () => (bool c) { c = Constant<value = bool {1}>() },
                else_branch = f () => (bool d) { d = Constant<value = bool {0}>() }
              >
            }
          >
        }
        """
    )
    feed = {"x": normal(1, 2, 3), "limit": np.array(9)}
    ours = agree(model, device, feed)
    plans: list[BoundPlan] = []
    run = Execution.run

    def counted(self: Execution) -> Any:
        plans.append(self.bound)
        return run(self)

    monkeypatch.setattr(Execution, "run", counted)
    ours.run(feed)
    # The start; of four turns each computes its conditions and two the state; the result is read.
    assert len(plans) == 1 + 4 + 2 + 1


@DEVICES
def test_one_slice_scan_has_no_graph_break(device: DeviceInfo) -> None:
    text = """
        g (float[n, 3] s, float[n, t, 3] a) => (float[n, 3] e, float[n, t, 3] p, float[t, 3] q)
        <float[3, 3] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0}> {
          x = Exp(a)
          e, p, q = Scan <num_scan_inputs = 1, scan_input_axes = [-2], scan_output_axes = [1, 0],
            body = f (float[n, 3] v, float[n, 3] x) => (float[n, 3] r, float[n, 3] u, float[3] z) {
              m = MatMul(x, w)
              r = Add(v, m)
              u = Sub(r, s)
              z = Constant<value = float[3] {1.0, 2.0, 3.0}>()
            }
          > (s, x)
        }
        """
    feeds = [{"s": normal(n, n, 3), "a": normal(n, n, 1, 3)} for n in (2, 4)]
    for known in (text, text.replace("n, t, 3] a", "n, 1, 3] a")):
        ours = agree(parsed(known), device, *feeds)
        assert all(stage.graph_break is None for stage in ours._runner.planner.kept.values())
    agree(
        parsed(text),
        device,
        feeds[0],
        *({"s": normal(0, 2, 3), "a": normal(t, 2, t, 3)} for t in (3, 2)),
    )

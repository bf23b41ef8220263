"""If, Loop, Scan and sequences, against ONNX Runtime and the references."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

import clrt
import clrt.stages as stages_module
from clrt.errors import InputError
from clrt.ir.op import Array
from clrt.ops.control_flow import Loop
from clrt.ops.evaluate import evaluate
from clrt.runtime.devices import DeviceInfo
from clrt.runtime.executor import BoundPlan
from tests.harness import all_devices

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])


def _model(text: str, ir_version: int = 8, opset: int = 18) -> bytes:
    head = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n'
    return bytes(parser.parse_model(head + text).SerializeToString())


def _agree(model: bytes, device: DeviceInfo, *feeds: dict[str, Any]) -> clrt.Model:
    ours = clrt.load(model, device=device.index, strict=True)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    plain = clrt.load(model, device=device.index, optimize_level=0)
    for feed in feeds:
        wanted = theirs.run(None, feed)
        for found in (ours.run(feed), plain.run(feed), evaluate(ours._graph, feed)):
            for a, b in zip(found.values(), wanted, strict=True):
                _same(a, b)
    return ours


def _same(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            _same(a, b)
        return
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def _x(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@DEVICES
def test_branches_with_their_own_shapes_and_values_from_outside(device: DeviceInfo) -> None:
    model = _model(
        """
        g (float[n, 3] x, bool c) => (float[m, k] y, float[n, 3] z) {
          z = Exp(x)
          w = Constant<value = float[3] {1.0, 2.0, 3.0}>()
          y = If (c) <
            then_branch = t () => (float[a, b] p) { q = Mul(z, w)  p = Concat<axis = 0>(q, x) },
            else_branch = e () => (float[a, b] r) { s = Add(x, w)  r = Transpose<perm = [1, 0]>(s) }
          >
        }
        """
    )
    feeds = [{"x": _x(n, n, 3), "c": np.array(c)} for n in (1, 4) for c in (True, False)]
    _agree(model, device, *feeds, *feeds)


@DEVICES
def test_a_branch_that_the_shapes_choose_is_part_of_the_plan(device: DeviceInfo) -> None:
    text = """
        g (float[n, 2] x) => (float[m] y) {
          s = Shape<start = 0, end = 1>(x)
          two = Constant<value = int64[1] {2}>()
          c = Greater(s, two)
          y = If (c) <
            then_branch = t () => (float[a] p) { p = ReduceMax<keepdims = 0>(x, one) },
            else_branch = e () => (float[a] r) { r = ReduceMin<keepdims = 0>(x, one) }
          >
          u = Identity(two)
        }
        """.replace("s = Shape", "one = Constant<value = int64[1] {1}>() s = Shape")
    ours = _agree(_model(text), device, *({"x": _x(n, n, 2)} for n in (1, 2, 3, 5)))
    assert all(stage.cut is None for stage in ours._stages.plans.values())


@DEVICES
def test_loops_that_count_stop_and_stack(device: DeviceInfo) -> None:
    model = _model(
        """
        g (float[n] x, int64 limit, float bound) => (float[n] last, float[t, n] all, float[t] top) {
          yes = Constant<value = bool {1}>()
          last, all, top = Loop (limit, yes, x) <
            body = b (int64 i, bool go, float[n] v)
                => (bool more, float[n] w, float[n] k, float m) {
              f = Cast<to = 1>(i)
              d = Add(v, f)
              w = Mul(d, x)
              k = Identity(w)
              m = ReduceMax<keepdims = 0>(w)
              more = Less(m, bound)
            }
          >
        }
        """
    )
    x = np.abs(_x(3, 4)) + 1
    for limit, bound in [(5, 1e9), (100, 40.0), (3, -1e9)]:
        bounds = {"limit": np.array(limit), "bound": np.array(bound, np.float32)}
        ours = _agree(model, device, {"x": x, **bounds})
    # ONNX Runtime has shape [0,0] here, though what is stacked is known to be [4].
    none = ours.run({"x": x, "limit": np.array(0), "bound": np.array(0, np.float32)})
    assert [a.shape for a in none.values()] == [(4,), (0, 4), (0,)]


@DEVICES
def test_a_loop_whose_state_grows(device: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model(
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
    ours = _agree(model, device, *({"x": _x(1, 3), "limit": np.array(k)} for k in (0, 1, 4)))
    before = ours._session.programs.builds
    ours.run({"x": _x(1, 3), "limit": np.array(6)})
    assert ours._session.programs.builds == before
    # Each of many turns has a plan of its own, which is there the next time.
    long = {"x": _x(1, 3), "limit": np.array(80)}
    wanted = ours.run(long)["y"]
    stages = ours._stages
    kept = {id(stage) for stage in stages.plans.values()}
    np.testing.assert_array_equal(ours.run(long)["y"], wanted)
    assert len(kept) > 80 and {id(stage) for stage in stages.plans.values()} == kept
    monkeypatch.setattr(stages_module, "KEPT_PLAN_BYTES", 0)
    ours.run({"x": _x(1, 4), "limit": np.array(1)})
    assert len(stages.plans) == stages_module.KEPT_PLANS


@DEVICES
def test_a_loop_whose_state_outgrows_the_shape_that_its_graph_declares(device: DeviceInfo) -> None:
    """As torch exports a list of results that starts empty, or a state that gains an axis."""
    model = _model(
        """
        g (float[n] x, int64 limit) => (float[m, n] y, float[k] z) {
          none = Constant<value = float[0, 3] {}>()
          one = Constant<value = float[1] {1.0}>()
          y, z = Loop (limit, , none, one) <
            body = b (int64 i, bool go, float[0, 3] v, float[1] u)
              => (bool more, float[j, 3] w, float[l] t)
            {
              more = Identity(go)
              axis = Constant<value = int64[1] {0}>()
              row = Unsqueeze(x, axis)
              w = Concat<axis = 0>(v, row)
              t = Concat<axis = 0>(u, u)
            }
          >
        }
        """
    )
    _agree(model, device, *({"x": _x(1, 3), "limit": np.array(k)} for k in (0, 1, 4)))


@DEVICES
def test_a_loop_whose_state_starts_as_a_number_and_whose_turn_is_a_vector(
    device: DeviceInfo,
) -> None:
    """As Paddle exports variables that the loop sets first; their declared ranks do not hold."""
    model = _model(
        """
        g (float[2, n] x, int64 limit) => (float[a, b] y, bool[c] z) {
          number = Constant<value = float {0.5}>()
          flag = Constant<value = bool {1}>()
          y, z = Loop (limit, , number, flag) <
            body = b (int64[1] i, bool[1] go, float[2, k] v, bool u)
              => (bool[1] more, float[2, j] w, bool t)
            {
              more = Identity(go)
              turn = Cast<to = 1>(i)
              sum = Add(v, turn)
              w = Add(sum, x)
              t = And(u, go)
            }
          >
        }
        """
    )
    _agree(model, device, *({"x": _x(1, 2, 3), "limit": np.array(k)} for k in (1, 2, 3)))


@DEVICES
def test_what_a_loop_hands_on_as_it_came_is_a_constant_of_its_graph(device: DeviceInfo) -> None:
    """As TensorFlow exports weights; these are constant once Sqrt is folded."""
    model = _model(
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
    feeds = ({"x": _x(1, 2, 2), "shift": _x(2, 2), "limit": np.array(k)} for k in (0, 1, 3))
    ours = _agree(model, device, *feeds)
    (loop,) = (n.op for n in ours._graph.nodes if isinstance(n.op, Loop))
    assert (loop.carried, loop.captures) == (1, 1)


@DEVICES
def test_a_little_arithmetic_of_both_branches_runs_without_reading_the_condition(
    device: DeviceInfo,
) -> None:
    """As TensorFlow's AutoGraph writes `if`, `continue` and `break` in a loop."""
    model = _model(
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
    feeds = [{"x": _x(k, 9, 3), "limit": np.array(9)} for k in range(3)]
    ours = _agree(model, device, *feeds)
    # Of the graph before and behind the loop, and of the loop's.
    assert len(ours._stages.plans) == 3


@DEVICES
def test_branches_that_do_not_fit_each_other_wait_for_the_condition(device: DeviceInfo) -> None:
    model = _model(
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
    x = _x(1, 4)
    fits = {"x": x, "z": x, "c": np.array(True)}
    # The branch that is not taken adds what does not fit.
    _agree(model, device, fits, {"x": x, "z": _x(2, 3), "c": np.array(False)})


@DEVICES
def test_sizes_from_outside_a_loop_are_known_when_its_graph_is_planned(device: DeviceInfo) -> None:
    """As tf.shape(x)[0] is in a TensorFlow loop: no turn waits to read what shapes tell."""
    model = _model(
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
    feeds = [{"x": _x(k, 2 + k, 6), "limit": np.array(3)} for k in range(2)]
    ours = _agree(model, device, feeds[0])
    # Of the graph before and behind the loop, and of the loop's.
    assert len(ours._stages.plans) == 3
    _agree(model, device, *feeds)


@DEVICES
def test_slices_by_the_turn_share_a_plan(device: DeviceInfo) -> None:
    """As Paddle writes to a tensor turn by turn; a plan takes longer than a turn."""
    model = _model(
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
    ours = _agree(model, device, {"x": _x(1, 2, 9), "start": _x(2, 2, 2), "limit": np.array(2)})
    plans = len(ours._stages.plans)
    feed = {"x": _x(3, 2, 9), "start": _x(4, 2, 2), "limit": np.array(6)}
    for found, wanted in zip(
        ours.run(feed).values(), onnxruntime.InferenceSession(model).run(None, feed), strict=True
    ):
        _same(found, wanted)
    assert len(ours._stages.plans) == plans


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
def test_crops_by_computed_boxes_share_a_plan(
    device: DeviceInfo, mode: str, kind: str, rows: int
) -> None:
    """As tf2onnx writes tf.image.crop_and_resize: a Resize of an image for each box."""
    model = _model(
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
        x = (np.abs(_x(first, 1, 2, 49, 7)) * scale).astype(dtype)
        chosen = np.array(boxes[first:], np.float32)
        return {"x": x, "boxes": chosen, "limit": np.array(len(chosen))}

    ours = clrt.load(model, device=device.index, strict=True)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    ours.run(feed(0))
    for first in (0, 1):
        (wanted,) = theirs.run(None, feed(first))
        _same(ours.run(feed(first))["y"], wanted)
    plans = len(ours._stages.plans)
    moved = feed(1)
    moved["boxes"] = moved["boxes"] * np.float32(0.9)
    (wanted,) = theirs.run(None, moved)
    _same(ours.run(moved)["y"], wanted)
    assert len(ours._stages.plans) == plans


@DEVICES
def test_what_a_turn_hands_on_is_not_run(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a scripted search stops: a branch gives a constant, or the state that came in."""
    model = _model(
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
    feed = {"x": _x(1, 2, 3), "limit": np.array(9)}
    ours = _agree(model, device, feed)
    plans: list[BoundPlan] = []
    run = BoundPlan.run

    def counted(self: BoundPlan, *arguments: Any) -> Any:
        plans.append(self)
        return run(self, *arguments)

    monkeypatch.setattr(BoundPlan, "run", counted)
    ours.run(feed)
    # The start; of four turns each computes its conditions and two the state; the result is read.
    assert len(plans) == 1 + 4 + 2 + 1


@DEVICES
def test_scans_forwards_and_backwards_along_any_axis(device: DeviceInfo) -> None:
    model = _model(
        """
        g (float[d] s, float[d, t] a, float[t, d] b) => (float[d] e, float[d, t] p, float[t, d] q) {
          e, p, q = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0],
                          scan_input_directions = [0, 1], scan_output_axes = [-1, 0],
                          scan_output_directions = [1, 0],
            body = f (float[d] v, float[d] x, float[d] y) => (float[d] w, float[d] u, float[d] z) {
              m = Mul(v, x)
              w = Add(m, y)
              u = Sub(w, s)
              z = Identity(m)
            }
          > (s, a, b)
        }
        """
    )
    _agree(model, device, *({"s": _x(0, 3), "a": _x(1, 3, t), "b": _x(2, t, 3)} for t in (1, 5)))


@DEVICES
def test_a_scan_of_one_slice_is_part_of_the_plan(device: DeviceInfo) -> None:
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
    feeds = [{"s": _x(n, n, 3), "a": _x(n, n, 1, 3)} for n in (2, 4)]
    for known in (text, text.replace("n, t, 3] a", "n, 1, 3] a")):
        ours = _agree(_model(known), device, *feeds)
        assert all(stage.cut is None for stage in ours._stages.plans.values())
    _agree(
        _model(text), device, feeds[0], *({"s": _x(0, 2, 3), "a": _x(t, 2, t, 3)} for t in (3, 2))
    )


@DEVICES
def test_a_loop_in_a_branch_in_a_loop(device: DeviceInfo) -> None:
    model = _model(
        """
        g (float[n] x, int64 limit) => (float[n] y) {
          yes = Constant<value = bool {1}>()
          half = Constant<value = float {0.5}>()
          y = Loop (limit, yes, x) <
            body = b (int64 i, bool go, float[n] v) => (bool more, float[n] w) {
              more = Identity(go)
              two = Constant<value = int64 {2}>()
              one = Constant<value = int64 {1}>()
              r = Mod(i, two)
              odd = Equal(r, one)
              w = If (odd) <
                then_branch = t () => (float[n] p) {
                  p = Loop (i, yes, v) <
                    body = c (int64 j, bool on, float[n] a) => (bool still, float[n] s) {
                      still = Identity(on)
                      h = Mul(a, half)
                      s = Add(h, x)
                    }
                  >
                },
                else_branch = e () => (float[n] q) { q = Neg(v) }
              >
            }
          >
        }
        """
    )
    _agree(model, device, *({"x": _x(1, 4), "limit": np.array(k)} for k in (1, 2, 5)))


@DEVICES
def test_sequences_in_and_out(device: DeviceInfo) -> None:
    model = _model(
        """
        g (seq(float[n]) s, float[k] x, int64 at) => (seq(float[m]) t, float[j] y, int64 count) {
          e = Exp(x)
          i = SequenceInsert(s, e, at)
          t = SequenceErase(i)
          y = ConcatFromSequence<axis = 0>(i)
          count = SequenceLength(t)
        }
        """
    )
    parts = [_x(k, k + 1) for k in range(3)]
    _agree(model, device, *({"s": parts, "x": _x(9, 2), "at": np.array(k)} for k in (0, 2, -1)))
    with pytest.raises(InputError, match="position 7 is outside a sequence of 3"):
        clrt.load(model, device=device.index).run({"s": parts, "x": _x(9, 2), "at": np.array(7)})
    with pytest.raises(InputError, match="pass a list"):
        clrt.load(model, device=device.index).run({"s": 5, "x": _x(9, 2), "at": np.array(0)})


@DEVICES
def test_a_map_over_a_sequence_of_tensors_of_all_sizes(device: DeviceInfo) -> None:
    model = _model(
        """
        g (float[n, 2] x, int64[k] sizes, float[2] b) => (float[m] y) {
          parts = SplitToSequence<axis = 0>(x, sizes)
          sums = SequenceMap (parts, b) <
            body = f (float[p, 2] v, float[2] c) => (float[2] s) {
              zero = Constant<value = int64[1] {0}>()
              a = Add(v, c)
              s = ReduceSum<keepdims = 0>(a, zero)
            }
          >
          y = ConcatFromSequence<axis = 0>(sums)
        }
        """
    )
    feeds = [{"x": _x(1, 6, 2), "sizes": np.array(s), "b": _x(2, 2)} for s in ([1, 2, 3], [4, 2])]
    _agree(model, device, *feeds)


@DEVICES
def test_text_goes_in_and_comes_out(device: DeviceInfo) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.STRING, [None, None])
    nodes = [
        helper.make_node("StringSplit", ["x"], ["parts", "counts"], delimiter=" "),
        helper.make_node("Transpose", ["parts"], ["y"], perm=[1, 0]),
    ]
    counts = helper.make_tensor_value_info("counts", TensorProto.INT64, ["n"])
    graph = helper.make_graph(nodes, "g", [x], [y, counts])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    model = clrt.load(proto.SerializeToString(), device=device.index)
    for given in (
        ["a b", "c", ""],
        np.array(["a b", "c", ""], object),
        np.array([b"a b", b"c", b""]),
    ):
        found = model.run({"x": given})
        assert found["y"].tolist() == [["a", "c", ""], ["b", "", ""]]
        assert found["counts"].tolist() == [2, 1, 1]
    with pytest.raises(InputError, match="must be string"):
        model.run({"x": np.zeros(3)})


@DEVICES
def test_an_absent_optional(device: DeviceInfo) -> None:
    float_2 = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    optional = helper.make_optional_type_proto(float_2)
    graph = helper.make_graph(
        [helper.make_node("OptionalHasElement", ["o"], ["has"])],
        "g",
        [helper.make_value_info("o", optional)],
        [helper.make_tensor_value_info("has", TensorProto.BOOL, [])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    model = clrt.load(proto.SerializeToString(), device=device.index)
    assert not model.run({"o": None})["has"]
    assert model.run({"o": np.zeros(2, np.float32)})["has"]


_TURNS = 'y=Loop(k,"")<body=b(int64 i, bool c)=>(bool d, float[a] o) { d=Identity(c) %s }> }'


@DEVICES
@pytest.mark.parametrize(
    "text",
    [
        "g (float[n,3] x, int64 k) => (float[t,a] y) { s=Shape(x) " + _TURNS % "o=Cast<to=1>(s)",
        "g (float[n,3] x, int64 k) => (float[t,a] y) { v=Concat<axis=0>(x,x) "
        + _TURNS % "s=Shape(v) o=Cast<to=1>(s)",
        "g (float[n,3] x, int64 k) => (float[t,a] y) { v=Concat<axis=0>(x,x) "
        + _TURNS
        % "s=Shape(v) z=ConstantOfShape(s) w=Constant<value=float{2}>() p=Add(z,w) "
        "l=Constant<value=int64[1]{-1}>() o=Reshape(p,l)",
        "g (float[n,3] x, int64 k) => (float[t,a] y) { v=Concat<axis=0>(x,x) w=Exp(v) "
        + _TURNS % "p=Add(v,w) l=Constant<value=int64[1]{-1}>() o=Reshape(p,l)",
    ],
    ids=["computed outside", "of an expression", "of as many elements", "twice the same"],
)
def test_sizes_of_the_graph_around(text: str, device: DeviceInfo) -> None:
    model = _model(text)
    _agree(model, device, *({"x": _x(0, n, 3), "k": np.array(2)} for n in (2, 1)))


@DEVICES
def test_a_shape_of_which_one_part_depends_on_data(device: DeviceInfo) -> None:
    model = _model(
        """g (float[n,3] x, bool[m] b) => (float[a,n] y) <int64[2] c={-1,3}, int64[1] one={1}> {
        k=Compress<axis=0>(x,b) u=Unsqueeze(k,one) e=Concat<axis=1>(u,u) r=Reshape(e,c)
        t=Transpose<perm=[1,0]>(x) s=MatMul(r,t) y=Softmax<axis=-1>(s) }"""
    )
    masks = ([True, False], [True, True])
    _agree(model, device, *({"x": _x(1, 2, 3), "b": np.array(mask)} for mask in masks))


@DEVICES
def test_a_sequence_map_reads_values_from_outside(device: DeviceInfo) -> None:
    model = _model(
        """g (float[n,3] x, float[3] w) => (seq(float[c,3]) z) {
        q=SplitToSequence<axis=0>(x) e=Exp(w)
        z=SequenceMap(q)<body=b(float[a,3] v)=>(float[c,3] o) { o=Add(v,e) }> }"""
    )
    _agree(model, device, {"x": _x(2, 2, 3), "w": _x(3, 3)})


def test_results_are_the_callers_own() -> None:
    model = clrt.load(
        _model(
            """g (float[2] x) => (optional(float[a]) o, seq(float[b]) s) <float[2] c={1,2}> {
            o=Optional(c) s=SequenceConstruct(c,x) }"""
        )
    )
    x = np.ones(2, np.float32)
    results = model.run(x)
    for array in (results["o"], *results["s"]):
        array[...] = 9
    again = model.run(x)
    np.testing.assert_array_equal(x, [1, 1])
    np.testing.assert_array_equal(again["o"], [1, 2])
    np.testing.assert_array_equal(again["s"], [[1, 2], [1, 1]])

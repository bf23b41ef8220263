"""Loops over small tensors that run in one launch, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.device.requires import ANY
from clrt.ops.control import kernel_loop
from clrt.ops.control.kernel_loop import KernelLoop
from clrt.plan.steps import launches_of
from clrt.runtime.opencl.devices import DeviceInfo
from tests.models.onnx_text import DEVICES, agree, normal, parsed


def _loop(carried: str, body: str, outputs: str, inputs: str = "", before: str = "") -> bytes:
    """Returns a Loop that ends by condition `more`; `carried` and `outputs` are declarations."""
    names = ", ".join(part.split()[-1] for part in carried.split("; "))
    results = ", ".join(part.split()[-1] for part in outputs.split("; "))
    formals = ", ".join(f"{part}_" for part in carried.split("; "))
    made = ", ".join(f"{part}_" for part in outputs.split("; "))
    return parsed(
        f"""
        g ({carried.replace("; ", ", ")}{inputs}) => ({outputs.replace("; ", ", ")}) {{
          always = Constant<value = bool {{1}}>()
          {before}
          {results} = Loop (, always, {names}) <
            body = turn (int64 i, bool go, {formals}) => (bool more, {made}) {{ {body} }}
          >
        }}
        """
    )


def _uses_kernel(model: clrt.Model) -> bool:
    """Returns whether a plan of the model runs a loop in a kernel."""
    launches = (x for s in model._runner.planner.kept.values() for x in launches_of(s.plan.steps))
    return any(x.kernel.entry == "kernel_loop" for x in launches)


FLOATS = _loop(
    "float[3, 1] x; double[2, 4, 3] d; int32 c",
    """
    wide = Add(x_, row)
    sums = ReduceSum<keepdims = 0>(wide, middle)
    next = Reshape(sums, column)
    y_ = Mul(next, half)
    means = ReduceMean<keepdims = 1>(d_, middle)
    less = Sub(d_, means)
    e_ = Mul(less, large)
    one = Constant<value = int32 {1}>()
    n_ = Add(c_, one)
    limit = Constant<value = int32 {45}>()
    more = Less(n_, limit)
    all_ = Concat<axis = 1>(wide, y_)
    """,
    "float[3, 1] y; double[2, 4, 3] e; int32 n; float[k, 3, 5] all",
    ", float[4] row",
    """
    middle = Constant<value = int64[1] {1}>()
    column = Constant<value = int64[2] {3, 1}>()
    half = Constant<value = float {0.125}>()
    large = Constant<value = double {1.01}>()
    """,
)
# Two states change places, and one is stacked before it changes; integers are divided by a number
# that is 0 behind the end.
INTEGERS = _loop(
    "int64 a; int64 b; int64 left",
    """
    one = Constant<value = int64 {1}>()
    b_new = Add(a_, b_)
    a_new = Identity(b_)
    left_new = Sub(left_, one)
    share = Div(b_new, left_)
    rest = Mod(b_new, left_)
    zero = Constant<value = int64 {0}>()
    more = Greater(left_new, zero)
    before = Identity(a_)
    """.replace("a_new", "c_")
    .replace("b_new", "d_")
    .replace("left_new", "n_")
    .replace("before", "old_")
    .replace("share", "share_")
    .replace("rest", "rest_"),
    "int64 c; int64 d; int64 n; int64[k] old; int64[k] share; int64[k] rest",
)
PRODUCTS = _loop(
    "float[2, 13] x; int64 i0",
    """
    one = Constant<value = int64 {1}>()
    j_ = Add(i0_, one)
    p = MatMul(x_, w)
    q = Gemm<transB = 1>(x_, v, bias)
    t = Tanh(p)
    left, right = Split<axis = 1>(q, parts)
    turned = Transpose<perm = [1, 0]>(right)
    back = Transpose<perm = [1, 0]>(turned)
    u = Concat<axis = 1>(back, left)
    cut = Slice(t, first, end, axes)
    wide = Expand(one_row, shape)
    s = Add(u, cut)
    y_ = Mul(s, wide)
    limit = Constant<value = int64 {30}>()
    more = Less(j_, limit)
    """,
    "float[2, 13] y; int64 j",
    ", float[13, 45] w, float[13, 13] v, float[13] bias",
    """
    parts = Constant<value = int64[2] {4, 9}>()
    first = Constant<value = int64[1] {31}>()
    end = Constant<value = int64[1] {44}>()
    axes = Constant<value = int64[1] {1}>()
    one_row = Constant<value = float[1, 1] {0.5}>()
    shape = Constant<value = int64[2] {2, 13}>()
    """,
)
# It reads at places that are there as long as the condition holds alone.
FOLLOWING = _loop(
    "int64 c; float v",
    """
    one = Constant<value = int64 {1}>()
    at = Gather(x, c_)
    w_ = Add(v_, at)
    more = Less(w_, limit)
    d_ = Add(c_, one)
    """,
    "int64 d; float w",
    ", float[40] x, float limit",
)
# The condition is a state, which the same iteration changes.
FLAGGED = parsed(
    """
    g (int64 c, bool flag) => (int64 d, bool last, int64[k] seen) {
      always = Constant<value = bool {1}>()
      d, last, seen = Loop (, always, c, flag) <
        body = turn (int64 i, bool go, int64 c_, bool flag_)
          => (bool more, int64 d_, bool next, int64 old) {
          one = Constant<value = int64 {1}>()
          limit = Constant<value = int64 {30}>()
          d_ = Add(c_, one)
          next = Less(d_, limit)
          old = Identity(c_)
          more = Identity(flag_)
        }>
    }
    """
)
LINES = _loop(
    "float[2, 5, 3] x; float[6] v; int64 i0",
    """
    one = Constant<value = int64 {1}>()
    j_ = Add(i0_, one)
    a = Softmax<axis = 1>(x_)
    b = LogSoftmax<axis = -1>(a)
    s = ReduceLogSumExp<keepdims = 1>(b, axes)
    t = Sub(x_, s)
    where = ArgMax<axis = 1, keepdims = 1>(t)
    low = ArgMin<axis = -1>(t)
    places = Add(where, low)
    shift = Cast<to = 1>(places)
    y_ = Add(t, shift)
    p = MatMul(m, v_)
    q = MatMul(p, m)
    w_ = Tanh(q)
    limit = Constant<value = int64 {30}>()
    more = Less(j_, limit)
    """,
    "float[2, 5, 3] y; float[6] w; int64 j",
    ", float[6, 6] m",
    "axes = Constant<value = int64[2] {0, 2}>()",
)
SCANNED = parsed(
    """
    g (float[3] s, float[2, n, 3] x, float[n, 2] z, float[3] w)
      => (float[3] t, float[2, 3, n] rows, float[n, 2] others)
    {
      t, rows, others = Scan<num_scan_inputs = 2, scan_input_axes = [1, 0],
          scan_input_directions = [1, 0], scan_output_axes = [-1, 0],
          scan_output_directions = [0, 1],
        body = b (float[3] s_, float[2, 3] x_, float[2] z_)
          => (float[3] t_, float[2, 3] row, float[2] other)
        {
          axes = Constant<value = int64[1] {0}>()
          sums = ReduceSum<keepdims = 0>(x_, axes)
          part = Mul(s_, w)
          t_ = Add(part, sums)
          row = Sub(x_, s_)
          other = Neg(z_)
        }>(s, x, z)
    }
    """
)


def _scanned(n: int) -> dict[str, Any]:
    weights = np.array([0.5, -0.5, 0.25], np.float32)
    return {"s": normal(1, 3), "x": normal(2, 2, n, 3), "z": normal(3, n, 2), "w": weights}


CASES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "floats": (
        FLOATS,
        {
            "x": normal(1, 3, 1),
            "d": normal(2, 2, 4, 3).astype(np.float64),
            "c": np.array(0, np.int32),
            "row": normal(3, 4),
        },
    ),
    "integers": (INTEGERS, {"a": np.array(0), "b": np.array(1), "left": np.array(60)}),
    "products": (
        PRODUCTS,
        {
            "x": normal(1, 2, 13),
            "i0": np.array(0),
            "w": normal(2, 13, 45) / 8,
            "v": normal(3, 13, 13) / 8,
            "bias": normal(4, 13),
        },
    ),
    "lines": (
        LINES,
        {"x": normal(1, 2, 5, 3), "v": normal(2, 6), "i0": np.array(0), "m": normal(3, 6, 6) / 2},
    ),
    "following": (
        FOLLOWING,
        {
            "c": np.array(-40),
            "v": np.array(0, np.float32),
            "x": np.ones(40, np.float32),
            "limit": np.array(39.5, np.float32),
        },
    ),
    "flagged": (FLAGGED, {"c": np.array(0), "flag": np.array(True)}),
    "scanned": (SCANNED, _scanned(37)),
}
EACH = pytest.mark.parametrize("name", CASES)


@DEVICES
@EACH
def test_small_loop_runs_in_one_kernel(device: DeviceInfo, name: str) -> None:
    model, feed = CASES[name]
    assert _uses_kernel(agree(model, device, feed, feed))


@DEVICES
@EACH
def test_work_group_shares_loop_iteration(
    device: DeviceInfo, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (group,) = (v for v in KernelLoop.variants if v.name == "group")
    monkeypatch.setattr(kernel_loop, "_LANES", 4)
    monkeypatch.setattr(KernelLoop, "variants", (replace(group, requires=ANY),))
    model, feed = CASES[name]
    assert _uses_kernel(agree(model, device, feed, feed))


@DEVICES
def test_long_loops_split_into_launches(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_loop, "_MAX_ITERATIONS", 16)
    for name in ("integers", "scanned"):
        model, feed = CASES[name]
        assert _uses_kernel(agree(model, device, feed, feed))


@DEVICES
def test_loop_index_out_of_range_is_reported_if_read(device: DeviceInfo) -> None:
    model, feed = CASES["following"]
    with clrt.load(model, device=device.index) as ours:
        assert ours.run(feed)["d"] == 0
        for limit, start in ((90.5, -40), (39.5, 1 << 40)):
            changed = {"limit": np.array(limit, np.float32), "c": np.array(start)}
            with pytest.raises(clrt.InputError, match="an index"):
                ours.run({**feed, **changed})
        assert ours.run(feed)["d"] == 0


def test_heavy_loop_bodies_run_as_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_loop, "_MAX_WORK", 10)
    model, feed = CASES["floats"]
    with clrt.load(model, device="portable") as ours:
        ours.run(feed)
        assert not _uses_kernel(ours)


@DEVICES
def test_new_loop_length_compiles_nothing(device: DeviceInfo) -> None:
    found = set()
    with clrt.load(SCANNED, device=device.index) as ours:
        for n in (20, 33, 50):
            ours.run(_scanned(n))
        for stage in ours._runner.planner.kept.values():
            launches = launches_of(stage.plan.steps)
            found |= {x.kernel for x in launches if x.kernel.entry == "kernel_loop"}
    assert len(found) == 1

"""Decode steps that append one row to a key/value cache on the device, at a cost per row."""

from __future__ import annotations

import time
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import clrt
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.plan.plan import Plan
from clrt.plan.steps import DeviceStep
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, name_of

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=name_of)
OPS = pytest.mark.parametrize("op", ["GroupQueryAttention", "Attention"])
HEADS, KV_HEADS, SIZE = 4, 2, 64
PAIRS = {"pk": "nk", "pv": "nv"}
RNG = np.random.default_rng(3)


def _info(name: str, shape: list[int | str], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


@cache
def _group_query(**attrs: int) -> onnx.ModelProto:
    widths = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    rows = [_info(n, ["B", "S", heads * SIZE]) for n, heads in widths.items()]
    caches = [_info(n, ["B", KV_HEADS, "P", SIZE]) for n in PAIRS]
    more = [_info("last", ["B"], TensorProto.INT32), _info("total", [], TensorProto.INT32)]
    inputs = [v.name for v in (*rows, *caches, *more)]
    constants = []
    if attrs.get("do_rotary"):
        constants = [
            onnx.numpy_helper.from_array(np.asarray(f, np.float32), n)
            for n, f in (("cos", RNG.random((64, SIZE // 2))), ("sin", RNG.random((64, SIZE // 2))))
        ]
        inputs += ["cos", "sin"]
    outputs = ["y", *PAIRS.values()]
    node = helper.make_node(
        "GroupQueryAttention", inputs, outputs, "attention", domain="com.microsoft",
        num_heads=HEADS, kv_num_heads=KV_HEADS, **attrs,
    )  # fmt: skip
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph([node], "g", [*rows, *caches, *more], infos, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@cache
def _attention() -> onnx.ModelProto:
    heads = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    rows = [_info(n, ["B", count, "S", SIZE]) for n, count in heads.items()]
    caches = [_info(n, ["B", KV_HEADS, "P", SIZE]) for n in PAIRS]
    more = [_info(n, ["B"], TensorProto.INT64) for n in ("first", "lengths")]
    nodes = [
        helper.make_node("TensorScatter", ["pk", "k", "first"], ["nk"], "keys", axis=-2),
        helper.make_node("TensorScatter", ["pv", "v", "first"], ["nv"], "values", axis=-2),
        helper.make_node(
            "Attention", ["q", "nk", "nv", "", "", "", "lengths"], ["y"], "attention", is_causal=1
        ),
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "nk", "nv")]
    graph = helper.make_graph(nodes, "g", [*rows, *caches, *more], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def _rows(op: str, lengths: Array, count: int) -> dict[str, Array]:
    """Returns the inputs without caches: `count` new rows, and lengths including them."""
    batch, by_head = len(lengths), op == "Attention"
    shapes = {
        n: (batch, heads, count, SIZE) if by_head else (batch, count, heads * SIZE)
        for n, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
    }
    feeds = {n: RNG.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    if by_head:
        return {**feeds, "first": lengths - count, "lengths": lengths}
    total = np.array(lengths.max(), np.int32)
    return {**feeds, "last": (lengths - 1).astype(np.int32), "total": total}


@DEVICES
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("Attention", {}),
        ("GroupQueryAttention", {}),
        ("GroupQueryAttention", {"do_rotary": 1, "local_window_size": 3}),
        ("GroupQueryAttention", {"do_rotary": 1, "rotary_interleaved": 1}),
    ],
    ids=["lengths", "plain", "window", "interleaved"],
)
def test_in_place_cache_steps_match_copied_cache(
    op: str, attrs: dict[str, int], device: DeviceInfo
) -> None:
    proto = _attention() if op == "Attention" else _group_query(**attrs)
    model, data = clrt.load(proto, device=device.index), proto.SerializeToString()
    caches = {n: RNG.standard_normal((2, KV_HEADS, 12, SIZE)).astype(np.float32) for n in PAIRS}
    state = model.new_state(PAIRS, caches)
    runner = ReferenceEvaluator(proto) if op == "Attention" else onnxruntime.InferenceSession(data)
    names, lengths = ["y", "nk", "nv"], np.array([4, 2])
    # In a first call of GroupQueryAttention a sequence may be padded; ONNX's Attention refuses.
    for count in (2 if op == "Attention" else 4, 1, 1, 1):
        rows = _rows(op, lengths, count)
        wanted = dict(zip(names, runner.run(names, {**rows, **caches}), strict=True))
        y = model.run(rows, state=state)["y"]
        for b, n in enumerate(lengths):
            seen = slice(min(n, count))
            at = (b, slice(None), seen) if op == "Attention" else (b, seen)
            np.testing.assert_allclose(y[at], wanted["y"][at], rtol=0, atol=1e-5)
        for name, output in PAIRS.items():
            found = state[name].numpy()
            for b, n in enumerate(lengths):
                np.testing.assert_allclose(found[b, :, :n], wanted[output][b, :, :n], atol=1e-5)
            caches[name] = wanted[output]
        lengths += 1
    assert len(model._runner.planner.kept) == 2  # of the first call, and of one row at any length


@DEVICES
@OPS
def test_decode_step_cost_is_independent_of_cache_capacity(op: str, device: DeviceInfo) -> None:
    proto, seconds = _attention() if op == "Attention" else _group_query(), dict[int, float]()
    for megabytes in (1, 64):
        model = clrt.load(proto, device=device.index)
        room = (megabytes << 20) // (4 * KV_HEADS * SIZE)
        empty = np.zeros((1, KV_HEADS, room, SIZE), np.float32)
        state = model.new_state(PAIRS, dict.fromkeys(PAIRS, empty))
        steps = [_rows(op, np.array([n]), 1) for n in (1, 7, 100, *[128] * 30)]
        allocations, times = list[int](), list[float]()
        for rows in steps:
            start = time.perf_counter()
            model.run(rows, state=state)
            times.append(time.perf_counter() - start)
            allocations.append(model._session.allocations)
        assert allocations[3] == allocations[-1]
        seconds[megabytes] = float(np.median(times[3:]))
        (stage,) = model._runner.planner.kept.values()
        for name, launches in _cache_launches(stage.plan).items():
            assert launches == 2, f"{name}: its row written, and its rows read"
    # A copy of 2 x 64 MB takes 20 ms and more.
    assert seconds[64] < seconds[1] + 4e-3, seconds


def _cache_launches(plan: Plan) -> dict[str, int]:
    """Returns the number of launches that access each cache's memory."""
    launches = [x for s in plan.steps if isinstance(s, DeviceStep) for x in s.launches]
    touched = [{plan.root(b).name for b in x.buffers if isinstance(b, Value)} for x in launches]
    return {name: sum(name in t for t in touched) for name in PAIRS}

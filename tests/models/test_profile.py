"""`Model.profile` on real devices."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clrt
from clrt.runtime.opencl import peaks
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.profiling.timings import KernelTime
from tests.harness import all_devices

ROWS = np.ones((2, 64), np.float32)


def small_model() -> onnx.ModelProto:
    """Returns y = Relu(x W) W."""
    w = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("MatMul", ["b", "w"], ["y"], "second"),
    ]
    return _model(nodes, ["rows", 64], [w])


def counted_model() -> onnx.ModelProto:
    """Returns y = NonZero(Relu(x)), whose size depends on the data."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("NonZero", ["a"], ["b"], "places"),
        helper.make_node("Cast", ["b"], ["y"], "cast", to=TensorProto.FLOAT),
    ]
    return _model(nodes, ["rows", 64], [])


def _model(
    nodes: list[onnx.NodeProto], shape: list[object], weights: list[onnx.TensorProto]
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.lengthy
@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
def test_profile_times_every_launch(device: DeviceInfo) -> None:
    with clrt.load(small_model(), device=device.index) as model:
        found = model.profile({"x": ROWS}, repeat=3)
        launches = model.plan({"x": ROWS.shape}).launches
        y = model.run(ROWS)["y"]
    assert len(found.kernels) == len(found.steps) == launches
    assert all(k.median_ns > 0 and k.start_ns < k.end_ns <= found.run_ns for k in found.steps)
    starts = [k.start_ns for k in found.steps]
    assert starts == sorted(starts)
    assert found.flops == 2 * 2 * 2 * 64 * 64
    # Two reads of the weights, which 16 bits hold, padded to whole panels; and x, a, a, y.
    least = 2 * 2 * 64 * 64 + 4 * 4 * 2 * 64
    assert least <= found.nbytes <= 2 * least
    assert {name for k in found.kernels for name in k.origins} >= {"first", "second", "relu"}
    assert found.wall_ms > 0 and found.peaks.gflops > 0 and found.peaks.gbs > 0
    (stage,) = found.stages
    assert {t.name for t in stage.tenants} >= {"x"}
    assert all(t.offset + t.nbytes <= stage.slab_bytes[t.slab] for t in stage.tenants)
    np.testing.assert_array_equal(y, np.full((2, 64), 64 * 64, np.float32))


def test_profile_stages_do_not_overlap(tmp_path: Path) -> None:
    with clrt.load(counted_model(), strict=False) as model:
        found = model.profile(ROWS, repeat=2)
    assert len(found.stages) == 2
    (places,) = found.host_steps
    assert (places.op, places.step) == ("NonZero", -1)
    before, after = (s for s in found.steps if isinstance(s, KernelTime))
    assert before.stage == 0 and after.stage == 1
    assert before.end_ns <= places.start_ns < places.end_ns <= after.start_ns
    found.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {e["tid"] for e in events if e["ph"] == "X"} == {0, 1, 2}


def test_profiled_gather_bytes_omit_unread_table_rows() -> None:
    table = numpy_helper.from_array(np.ones((5000, 64), np.float32), "table")
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"], "rows")]
    model = _model(nodes, ["n"], [table])
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    with clrt.load(model) as loaded:
        found = loaded.profile(np.arange(10), repeat=1)
    assert found.nbytes == 2 * 10 * 64 * 4 + 10 * 8


def test_explain_and_profile_report_equal_bytes() -> None:
    rng = np.random.default_rng(0)
    shapes = {"table": (50, 64), "w": (64, 64), "scale": (64,)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["rows"]),
        helper.make_node("Split", ["rows"], ["left", "right"], axis=1, num_outputs=2),
        helper.make_node("Concat", ["right", "left"], ["turned"], axis=1),
        helper.make_node("MatMul", ["turned", "w"], ["product"]),
        helper.make_node("LayerNormalization", ["product", "scale"], ["y"]),
    ]
    model = _model(nodes, ["n"], weights)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    with clrt.load(model) as loaded:
        profiled = loaded.profile(np.arange(10), repeat=1)
        explained = loaded.explain({"x": (10,)})
    moved = Counter[str]()
    for kernel in profiled.kernels:
        moved[kernel.node] += kernel.nbytes
    assert {r.op for r in explained.rows} >= {"Gather", "Split", "Concat", "LayerNormalization"}
    told = {r.name: r.read_bytes + r.written_bytes + r.scratch_bytes for r in explained.rows}
    assert {name: nbytes for name, nbytes in told.items() if nbytes} == moved
    # Both halves of what goes into the Concat, and the whole that comes out.
    assert [told[r.name] for r in explained.rows if r.op == "Concat"] == [2 * 10 * 64 * 4]


def test_profile_refuses_bad_repeat_and_closed_model() -> None:
    model = clrt.load(small_model())
    for repeat in (0, 1.5, "2"):
        with pytest.raises(clrt.InputError, match=f"repeat is {repeat!r}"):
            model.profile(ROWS, repeat=repeat)  # type: ignore[arg-type]
    model.close()
    with pytest.raises(clrt.InputError, match="closed"):
        model.profile(ROWS)


def _recurrent(kind: str, gates: int) -> onnx.ModelProto:
    """Returns a recurrent layer over x [time, batch, 64] with 96 states."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, gates * 96, 64), "r": (1, gates * 96, 96)}
    weights = [
        numpy_helper.from_array(rng.uniform(-0.1, 0.1, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [helper.make_node(kind, ["x", "w", "r"], ["y"], kind, hidden_size=96)]
    return _model(nodes, ["time", "batch", 64], weights)


def _elementwise() -> onnx.ModelProto:
    """Returns elementwise programs over x, copies and sums."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["a"], "sigmoid"),
        helper.make_node("Mul", ["x", "a"], ["b"], "product"),
        helper.make_node("Softmax", ["b"], ["c"], "softmax"),
        helper.make_node("Transpose", ["c"], ["d"], "turn", perm=[1, 0]),
        helper.make_node("Concat", ["a", "c"], ["e"], "joined", axis=0),
        helper.make_node("ReduceSum", ["e"], ["f"], "sums", keepdims=0),
        helper.make_node("MatMul", ["d", "c"], ["g"], "last"),
        helper.make_node("Add", ["g", "f"], ["y"], "end"),
    ]
    return _model(nodes, ["rows", "columns"], [])


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (_recurrent("LSTM", 4), (48, 2, 64)),
        (_recurrent("GRU", 3), (48, 2, 64)),
        (small_model(), (2048, 64)),
        (_elementwise(), (96, 96)),
        (_elementwise(), (700, 700)),
    ],
    ids=["lstm", "gru", "products", "small", "large"],
)
def test_profiled_steps_stay_below_measured_peaks(
    device: DeviceInfo, model: onnx.ModelProto, shape: tuple[int, ...]
) -> None:
    """A sixth is for clocks that move between the measurements. LSTM had 1,500 %, copies 250 %.

    What else runs on the machine may slow the measurement of a ceiling: then it is made anew. A
    ceiling that is wrong stays so.
    """
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    with clrt.load(model, device=device.index) as loaded:
        for _ in range(5):
            found = loaded.profile({"x": x}, repeat=9)
            shares = {(k.entry, k.node): k.roofline_share for k in found.kernels}
            if max(shares.values()) <= 1.17:
                break
            peaks._MEASURED.clear()
    assert max(shares.values()) <= 1.17, shares

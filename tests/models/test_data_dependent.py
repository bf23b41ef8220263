"""Shapes that depend on computed data: graph breaks, host reads and replanning."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import clrt
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[str | int]]],
    outputs: dict[str, int],
    **constants: Array,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def _agree(model: bytes, device: DeviceInfo, *feeds: dict[str, Array]) -> clrt.Model:
    ours = clrt.load(model, device=device.index, strict=True)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for feed in feeds:
        wanted = theirs.run(None, feed)
        for found, expected in zip(ours.run(feed).values(), wanted, strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    return ours


def _tensor(array: Array) -> TensorProto:
    return onnx.numpy_helper.from_array(array)


def _x(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@DEVICES
def test_nonzero_gather_matmul_matches_onnxruntime(device: DeviceInfo) -> None:
    node = helper.make_node
    model = _model(
        [
            node("ReduceMax", ["x"], ["top"], axes=[1], keepdims=0),
            node("Relu", ["top"], ["positive"]),
            node("NonZero", ["positive"], ["where"]),
            node("Squeeze", ["where", "zero"], ["rows"]),
            node("Gather", ["x", "rows"], ["kept"]),
            node("MatMul", ["kept", "w"], ["y"]),
        ],
        {"x": (FLOAT, ["n", 5])},
        {"y": FLOAT, "positive": FLOAT},
        w=_x(9, 5, 3),
        zero=np.array([0]),
    )
    feeds = [{"x": _x(s, n, 5) - 1} for s, n in [(0, 6), (1, 6), (2, 9), (3, 1)]]
    _agree(model, device, *feeds, {"x": -np.ones((4, 5), np.float32)})


@DEVICES
def test_computed_reshape_dims_reuse_programs(device: DeviceInfo) -> None:
    node = helper.make_node
    model = _model(
        [
            node("Cast", ["count"], ["c"], to=FLOAT),
            node("Mul", ["c", "two"], ["d"]),
            node("Cast", ["d"], ["e"], to=INT),
            node("Concat", ["e", "rest"], ["shape"], axis=0),
            node("Exp", ["x"], ["z"]),
            node("Reshape", ["z", "shape"], ["r"]),
            node("Shape", ["r"], ["s"]),
            node("ReduceSum", ["r", "one"], ["y"], keepdims=0),
        ],
        {"x": (FLOAT, [4, 6]), "count": (INT, [1])},
        {"y": FLOAT, "s": INT, "z": FLOAT},
        two=np.float32(2),
        rest=np.array([-1]),
        one=np.array([1]),
    )
    feeds = [{"x": _x(c, 4, 6), "count": np.array([c])} for c in (1, 2, 3, 2, 1)]
    ours = _agree(model, device, *feeds)
    before = ours._session.programs.builds
    ours.run(feeds[0])
    assert ours._session.programs.builds == before


@DEVICES
def test_expand_to_input_shape_matches_onnxruntime(device: DeviceInfo) -> None:
    node = helper.make_node
    model = _model(
        [node("Expand", ["x", "shape"], ["wide"]), node("Add", ["wide", "x"], ["y"])],
        {"x": (FLOAT, ["a", 1]), "shape": (INT, ["k"])},
        {"y": FLOAT},
    )
    shapes = [(3, 4), (3, 1), (2, 3, 5)]
    _agree(model, device, *({"x": _x(1, 3, 1), "shape": np.array(s)} for s in shapes))
    with pytest.raises(clrt.errors.ShapeError, match="Expand"):
        clrt.load(model, device=device.index).run({"x": _x(1, 3, 1), "shape": np.array([2, 2])})


@DEVICES
def test_relu_of_computed_reshape_matches_onnxruntime(device: DeviceInfo) -> None:
    node = helper.make_node
    model = _model(
        [node("Reshape", ["x", "shape"], ["r"]), node("Relu", ["r"], ["y"])],
        {"x": (FLOAT, ["a", 4]), "shape": (INT, [3])},
        {"y": FLOAT},
    )
    shapes = [(2, 1, 6), (2, -1, 3), (0, 2, 2), (2, 1, 6)]
    _agree(model, device, *({"x": _x(1, 3, 4), "shape": np.array(s)} for s in shapes))


@DEVICES
def test_compress_condition_past_axis_end_is_refused(device: DeviceInfo) -> None:
    model = _model(
        [helper.make_node("Compress", ["x", "c"], ["y"], axis=0)],
        {"x": (FLOAT, ["n", 2]), "c": (TensorProto.BOOL, ["k"])},
        {"y": FLOAT},
    )
    ours = _agree(model, device, {"x": _x(1, 3, 2), "c": np.arange(5) < 2})
    with pytest.raises(clrt.InputError, match=r"Compress.*true at 4, but the axis has only 3"):
        ours.run({"x": _x(1, 3, 2), "c": np.arange(5) == 4})


@DEVICES
def test_paddle_masks_and_squeezes_match_onnxruntime(device: DeviceInfo) -> None:
    """Compress by a condition of x's shape, and Squeeze with an empty axes list."""
    model = _model(
        [
            helper.make_node("Greater", ["x", "zero"], ["mask"]),
            helper.make_node("Compress", ["x", "mask"], ["chosen"]),
            helper.make_node("Unsqueeze", ["x", "places"], ["wide"]),
            helper.make_node("Squeeze", ["wide", "none"], ["narrow"]),
        ],
        {"x": (FLOAT, ["n", "m"])},
        {"chosen": FLOAT, "narrow": FLOAT},
        zero=np.float32(0),
        places=np.array([0, 2]),
        none=np.zeros(0, np.int64),
    )
    _agree(model, device, {"x": _x(1, 5, 3)}, {"x": _x(2, 1, 4)})


@DEVICES
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_compress_by_plan_time_condition_matches_onnxruntime(
    device: DeviceInfo, axis: int | None
) -> None:
    """Conditions from constants or shapes; tf2onnx exports reflection padding in this form."""
    axes = {} if axis is None else {"axis": axis}
    model = _model(
        [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "last"], ["size"]),
            helper.make_node("ConstantOfShape", ["size"], ["all"], value=_tensor(np.ones(1, bool))),
            helper.make_node("ScatterElements", ["all", "gone", "no"], ["kept"]),
            helper.make_node("Compress", ["x", "kept"], ["some"], **axes),
            helper.make_node("Compress", ["x", "two"], ["pair"], **axes),
        ],
        {"x": (FLOAT, ["n", "n"])},
        {"some": FLOAT, "pair": FLOAT},
        last=np.array([1]),
        gone=np.array([1, -2]),
        no=np.array([False, False]),
        two=np.array([True, False, True]),
    )
    _agree(model, device, {"x": _x(1, 5, 5)}, {"x": _x(2, 4, 4)})


@pytest.mark.parametrize(
    ("op", "values", "says"),
    [
        ("Tile", [-1, 1], "cannot have the sizes"),
        ("Split", [-1, 4], "cannot have the sizes"),
        ("SplitToSequence", [-1, 4], r"sizes \[-1, 4\] are not valid"),
        ("TopK", [1, 2], "k has 2 elements"),
    ],
)
def test_invalid_computed_sizes_are_refused(op: str, values: list[int], says: str) -> None:
    outputs = dict.fromkeys(("y", "z") if op in ("Split", "TopK") else ("y",), FLOAT)
    nodes = [helper.make_node(op, ["x", "k"], list(outputs))]
    if op == "SplitToSequence":
        nodes.append(helper.make_node("ConcatFromSequence", ["y"], ["w"], axis=0))
        outputs = {"w": FLOAT}
    model = _model(nodes, {"x": (FLOAT, ["n", 4]), "k": (INT, [2])}, outputs)
    with pytest.raises(clrt.ShapeError, match=says):
        clrt.load(model, device="cpu").run({"x": _x(1, 3, 4), "k": np.array(values)})


def test_transpose_perm_of_wrong_rank_is_refused_at_run() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Transpose", ["r"], ["y"], perm=[0, 2, 1]),
    ]
    model = _model(nodes, {"x": (FLOAT, [3, 4]), "shape": (INT, ["k"])}, {"y": FLOAT})
    with pytest.raises(clrt.ShapeError, match=r"Transpose.*\[0, 2, 1\] does not permute the axes"):
        clrt.load(model, device="cpu").run({"x": _x(1, 3, 4), "shape": np.array([2, 6])})


@DEVICES
def test_compressed_size_is_usable_after_graph_break(device: DeviceInfo) -> None:
    node = helper.make_node
    model = _model(
        [
            node("Greater", ["x", "zero"], ["mask"]),
            node("Compress", ["x", "mask"], ["some"], axis=0),
            node("Shape", ["some"], ["n"]),
            node("Cast", ["n"], ["nf"], to=FLOAT),
            node("Div", ["some", "nf"], ["scaled"]),
            node("Range", ["i0", "n0", "i1"], ["index"]),
            node("Squeeze", ["n", "i00"], ["n0"]),
            node("Cast", ["index"], ["fi"], to=FLOAT),
            node("Mul", ["scaled", "fi"], ["y"]),
        ],
        {"x": (FLOAT, ["n"])},
        {"y": FLOAT, "n": INT},
        zero=np.float32(0),
        i0=np.int64(0),
        i1=np.int64(1),
        i00=np.array([0]),
    )
    _agree(model, device, *({"x": _x(s, n)} for s, n in [(0, 7), (1, 7), (2, 30)]))


@DEVICES
def test_computed_cumsum_axis_runs_on_device(device: DeviceInfo) -> None:
    """Shapes are known, but the CumSum axis is computed."""
    nodes = [
        helper.make_node("Add", ["axis", "axis"], ["twice"]),
        helper.make_node("CumSum", ["x", "twice"], ["sums"]),
        helper.make_node("Trilu", ["sums", "axis"], ["y"]),
    ]
    inputs: dict[str, tuple[int, list[str | int]]] = {"x": (FLOAT, [2, "n", 5]), "axis": (INT, [])}
    feeds = [{"x": _x(3, 2, 4, 5), "axis": np.array(axis)} for axis in (0, 1, 0)]
    model = _agree(_model(nodes, inputs, {"y": FLOAT}), device, *feeds)
    assert not any(s.plan.host_steps for s in model._runner.planner.kept.values())


@DEVICES
def test_views_of_folded_slice_match_onnxruntime(device: DeviceInfo) -> None:
    """The slice end is a folded constant; the following view's dims are already constant."""
    nodes = [
        helper.make_node("Sqrt", ["sixteen"], ["root"]),
        helper.make_node("Cast", ["root"], ["end"], to=INT),
        helper.make_node("Slice", ["x", "start", "end"], ["front"]),
        helper.make_node("Unsqueeze", ["front", "start"], ["rows"]),
        helper.make_node("Gather", ["rows", "zero"], ["view"]),
        helper.make_node("Sigmoid", ["view"], ["y"]),
    ]
    inputs: dict[str, tuple[int, list[str | int]]] = {"x": (FLOAT, [6, 8])}
    numbers = {
        "sixteen": np.array([16], np.float32),
        "start": np.array([0]),
        "zero": np.array(0),
    }
    _agree(_model(nodes, inputs, {"y": FLOAT}, **numbers), device, {"x": _x(4, 6, 8)})


@DEVICES
def test_data_dependent_nodes_share_one_graph_break(device: DeviceInfo) -> None:
    """Two NonZero results of data-dependent size, and a computed shape."""
    nodes = [
        helper.make_node("Relu", ["x"], ["high"]),
        helper.make_node("NonZero", ["high"], ["above"]),
        helper.make_node("Neg", ["x"], ["negated"]),
        helper.make_node("Relu", ["negated"], ["low"]),
        helper.make_node("NonZero", ["low"], ["below"]),
        helper.make_node("Concat", ["above", "below"], ["places"], axis=1),
        helper.make_node("Mul", ["roots", "roots"], ["target"]),
        helper.make_node("Reshape", ["high", "target"], ["square"]),
        helper.make_node("Abs", ["square"], ["y"]),
    ]
    inputs: dict[str, tuple[int, list[str | int]]] = {"x": (FLOAT, ["n"]), "roots": (INT, [2])}
    model = _model(nodes, inputs, {"places": INT, "y": FLOAT})
    feeds = [{"x": _x(n, 4 * n), "roots": np.array(r)} for n, r in ((9, (2, 3)), (4, (2, 2)))]
    ours = _agree(model, device, *feeds)
    assert len(ours._runner.planner.kept) == 2 * len(feeds)


@DEVICES
def test_non_max_suppression_of_class_offsets_matches_onnxruntime(device: DeviceInfo) -> None:
    """Detectors suppress per class by giving each class its own coordinate range."""
    names = ["boxes", "scores", "most", "overlap", "least"]
    nodes = [helper.make_node("NonMaxSuppression", names, ["y"])]
    inputs: dict[str, tuple[int, list[str | int]]] = {
        "boxes": (FLOAT, [1, "n", 4]),
        "scores": (FLOAT, [1, 2, "n"]),
    }
    rng = np.random.default_rng(7)
    feeds = []
    for count in (0, 1, 40, 300):
        corners = rng.uniform(0, 20, (count, 2)) + 100 * rng.integers(0, 4, (count, 1))
        boxes = np.concatenate([corners, corners + rng.uniform(0, 9, (count, 2))], 1)
        scores = rng.uniform(0, 1, (1, 2, count))
        feeds.append({"boxes": boxes[None].astype(np.float32), "scores": scores.astype(np.float32)})
    for most in (5, 1000):
        limits = {
            "most": np.array([most]),
            "overlap": np.array([0.3], np.float32),
            "least": np.array([0.1], np.float32),
        }
        _agree(_model(nodes, inputs, {"y": INT}, **limits), device, *feeds)

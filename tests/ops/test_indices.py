"""Indices, lengths and places from data: a hostile one ends in an error that names it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clrt
from clrt.errors import InputError, ModelError, NumberError
from clrt.ir.op import Array
from clrt.ops import REGISTRY
from clrt.ops.base import Op, Sample
from clrt.ops.gather import Gather
from clrt.ops.gather_elements import GatherElements
from clrt.ops.gather_nd import GatherND, ScatterND
from clrt.ops.gru import GRU
from clrt.ops.lstm import LSTM
from clrt.ops.max_roi_pool import MaxRoiPool
from clrt.ops.one_hot import OneHot
from clrt.ops.recurrent import Recurrent, sample_inputs
from clrt.ops.reverse_sequence import ReverseSequence
from clrt.ops.rnn import RNN
from clrt.ops.roi_align import RoiAlign
from clrt.ops.scatter_elements import ScatterElements
from clrt.ops.tensor_scatter import TensorScatter
from clrt.plan.plan import Kernels
from clrt.runtime.devices import DeviceInfo
from tests.harness import all_devices, plan_graph, run_plan, sample_graph

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
KERNELS = Path(__file__).parents[2] / "kernels_cl"
# What int64 -> int32 or an addition would make good again is among them.
HUGE = (-(1 << 63), -(1 << 32), -(1 << 31), 1 << 31, 1 << 32, (1 << 32) + 1, (1 << 63) - 1)


@dataclass(frozen=True)
class Follower:
    """An op that follows numbers of an input, and those just outside what it allows."""

    op: Op
    inputs: tuple[Array | None, ...]
    operand: int
    outside: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.op.name}-{self.operand}"

    def bad(self) -> Iterator[tuple[float, tuple[Array | None, ...]]]:
        """Each number that is not allowed, and the inputs with it in the last place."""
        given = self.inputs[self.operand]
        assert given is not None
        for number in (*self.outside, *HUGE):
            if given.dtype.kind == "i":
                limits = np.iinfo(given.dtype)
                if not limits.min <= number <= limits.max:
                    continue
            changed = given.copy()
            changed.reshape(-1)[-1] = number
            yield (
                changed.reshape(-1)[-1].item(),
                (*self.inputs[: self.operand], changed, *self.inputs[self.operand + 1 :]),
            )


def _floats(*shape: int) -> Array:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


def _recurrent(cls: type[Recurrent]) -> Follower:
    return Follower(cls(), sample_inputs(cls, (4, 3, 5, 7), cls(), (True,) * 5), 4, (-1, 5))


def _followers() -> Iterator[Follower]:
    x = _floats(4, 5)
    for dtype in (np.int64, np.int32):
        one = np.array([1, -4], dtype)
        yield Follower(Gather(), (x, one), 1, (-5, 4))
        yield Follower(Gather(), (_floats(4, 32), one), 1, (-5, 4))
        yield Follower(Gather(1), (x, one), 1, (-6, 5))
        yield Follower(GatherElements(), (x, np.zeros((2, 5), dtype)), 1, (-5, 4))
        yield Follower(ScatterElements(), (x, np.zeros((2, 5), dtype), x[:2]), 1, (-5, 4))
        yield Follower(GatherND(), (x, np.zeros((3, 2), dtype)), 1, (-6, 5))
        yield Follower(GatherND(1), (x, np.zeros((4, 1), dtype)), 1, (-6, 5))
        yield Follower(ScatterND("add"), (x, np.zeros((3, 1), dtype), x[:3]), 1, (-5, 4))
    cache = _floats(2, 1, 6, 3), _floats(2, 1, 2, 3)
    yield Follower(TensorScatter(), (*cache, np.array([0, 4])), 2, (-1, 5, 6))
    yield Follower(ReverseSequence(), (_floats(4, 3, 2), np.array([0, 4, 2])), 1, (-1, 5))
    image = _floats(2, 3, 6, 7)
    regions = np.array([[0, 0, 5, 4], [1, 2, 6, 5]], np.float32)
    yield Follower(RoiAlign(), (image, regions, np.array([0, 1])), 2, (-1, 2))
    yield from (_recurrent(cls) for cls in (LSTM, GRU, RNN))


FOLLOWERS = pytest.mark.parametrize("follower", list(_followers()), ids=str)


def _run(follower: Follower, inputs: Sequence[Array | None], device: DeviceInfo) -> list[Array]:
    graph = sample_graph(Sample(follower.op, tuple(inputs)))
    plan = plan_graph(graph, device.caps)
    assert all(isinstance(step, Kernels) for step in plan.steps)
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}
    return list(run_plan(plan, feeds, device).values())


@FOLLOWERS
@DEVICES
def test_a_number_out_of_range_is_named(follower: Follower, device: DeviceInfo) -> None:
    expected = follower.op.reference(*follower.inputs)
    found = 0
    for number, inputs in follower.bad():
        # A simulator takes seconds for large ones; there those just outside are enough.
        if device.caps.simulator and number not in follower.outside:
            continue
        found += 1
        with pytest.raises(NumberError, match=rf" is {number}; allowed are "):
            _run(follower, inputs, device)
        with pytest.raises(NumberError, match=rf" is {number}; allowed are "):
            follower.op.reference(*inputs)
    assert found
    for actual, array in zip(_run(follower, follower.inputs, device), expected, strict=False):
        np.testing.assert_allclose(actual, array, rtol=1e-5, atol=1e-5)


@DEVICES
@pytest.mark.parametrize("number", [-1.0, 2.0, np.nan, np.inf, -np.inf, 3e38])
def test_the_image_of_a_region_is_named(number: float, device: DeviceInfo) -> None:
    rois = np.array([[1, 0, 0, 5, 4], [number, 1, 2, 6, 5]], np.float32)
    follower = Follower(MaxRoiPool((2, 2)), (_floats(2, 3, 6, 7), rois), 1, ())
    said = re.escape(str(np.float32(number).item()))
    with pytest.raises(NumberError, match=f"an image is {said}; allowed are 0..1"):
        _run(follower, follower.inputs, device)
    with pytest.raises(NumberError, match=f"an image is {said}; allowed are 0..1"):
        follower.op.reference(*follower.inputs)


@DEVICES
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e9, -1e9, 2.2e9, 1e6])
def test_regions_far_outside_end_and_read_nothing_outside(
    number: float, device: DeviceInfo
) -> None:
    x = np.abs(np.sin(_floats(1, 2, 6, 7)))
    rois = [[0, 0, number, 4], [number, 1, 6, 5], [0, number, 5, number], [-number, 0, number, 4]]
    regions = np.array(rois, np.float32)
    images = np.zeros(len(rois), np.int64)
    numbered = np.column_stack([images, regions]).astype(np.float32)
    for op, inputs in [
        *((RoiAlign(p, m, 2, 2), (x, regions, images)) for p in ("half_pixel", "output_half_pixel")
          for m in ("avg", "max")),
        (MaxRoiPool((2, 2)), (x, numbered)),
    ]:  # fmt: skip
        with np.errstate(all="ignore"):
            (expected,) = op.reference(*inputs)
        (found,) = _run(Follower(op, inputs, 1, ()), inputs, device)
        if abs(number) == 1e6:  # within what float32 tells apart
            np.testing.assert_allclose(found, expected, atol=1e-3, err_msg=str(op))
        assert np.isfinite(found).all()


@DEVICES
def test_floats_that_are_no_index_are_nowhere_on(device: DeviceInfo) -> None:
    indices = np.array([0, np.nan, np.inf, -np.inf, 1e30, -1e30, -1, 2], np.float32)
    inputs = (indices, np.array(3), np.array([0, 1], np.float32))
    plan = plan_graph(sample_graph(Sample(OneHot(), inputs)), device.caps)
    (found,) = run_plan(plan, {"x0": indices, "x2": inputs[2]}, device).values()
    np.testing.assert_array_equal(np.argwhere(found), [[0, 0], [6, 2], [7, 2]])
    np.testing.assert_array_equal(found, OneHot().reference(*inputs)[0])


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Sequence[Any]]],
    outputs: dict[str, tuple[int, Sequence[Any]]],
    constants: dict[str, Array],
) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, *t) for n, t in inputs.items()],
        [helper.make_tensor_value_info(n, *t) for n, t in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    opset = helper.make_opsetid("", 18)
    return bytes(helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString())


def _named(device: DeviceInfo) -> str:
    return device.platform


TABLE = {"table": _floats(10, 4)}
ROWS = {"y": (TensorProto.FLOAT, ["n", 4])}
IDS = {"ids": (TensorProto.INT64, ["n"])}


@DEVICES
@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (lambda: [], "an index of input 'ids' is 10; allowed are -10..9"),
        (
            lambda: [helper.make_node("Add", ["ids", "one"], ["at"])],
            "an index computed from input 'ids' is 11; allowed are -10..9",
        ),
        (
            lambda: [
                helper.make_node("Unsqueeze", ["ids", "zero"], ["row"]),
                helper.make_node("Squeeze", ["row", "zero"], ["at"]),
            ],
            "an index of input 'ids' is 10; allowed are -10..9",
        ),
        (
            # The rest of a graph that is cut reads what the first part computed.
            lambda: [
                helper.make_node("NonZero", ["more"], ["found"]),
                helper.make_node("ReduceMax", ["found"], ["most"], keepdims=0),
                helper.make_node("Add", ["ids", "most"], ["at"]),
            ],
            "an index computed from inputs .* is 11; allowed are -10..9",
        ),
    ],
)
def test_the_input_of_the_model_is_named(
    nodes: Callable[[], list[onnx.NodeProto]], said: str, device: DeviceInfo
) -> None:
    before = nodes()
    at = "at" if before else "ids"
    model = _model(
        [*before, helper.make_node("Gather", ["table", at], ["y"], name="emb")],
        {**IDS, "more": (TensorProto.BOOL, ["m"])},
        ROWS,
        {**TABLE, "one": np.array(1), "zero": np.array([0])},
    )
    with clrt.load(model, device=_named(device)) as loaded:
        feeds = {"ids": np.array([3, 10]), "more": np.array([True, True])}
        for _ in range(2):
            with pytest.raises(InputError, match=f"^Gather 'emb': {said}"):
                loaded.run(feeds)
        feeds["ids"] = np.array([3, 8])
        (y,) = loaded.run(feeds).values()
    offset = 1 if "computed" in said else 0
    np.testing.assert_array_equal(y, TABLE["table"][feeds["ids"] + offset])


@DEVICES
def test_the_input_is_named_where_a_graph_in_a_node_reads_it(device: DeviceInfo) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"], name="inner"),
            helper.make_node("Identity", ["more"], ["goes_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 4]),
        ],
    )
    model = _model(
        [helper.make_node("Loop", ["times", ""], ["y"], body=body, name="loop")],
        {**IDS, "times": (TensorProto.INT64, [])},
        {"y": (TensorProto.FLOAT, ["t", "n", 4])},
        TABLE,
    )
    with clrt.load(model, device=_named(device)) as loaded:
        feeds = {"ids": np.array([3, -11]), "times": np.array(2)}
        with pytest.raises(
            InputError, match="Gather 'loop/inner': an index of input 'ids' is -11;"
        ):
            loaded.run(feeds)
        feeds["ids"] = np.array([3, -10])
        (y,) = loaded.run(feeds).values()
    np.testing.assert_array_equal(y, np.stack([TABLE["table"][[3, 0]]] * 2))


@DEVICES
def test_a_wrong_constant_is_the_fault_of_the_model(device: DeviceInfo) -> None:
    model = _model(
        [
            helper.make_node("Add", ["table", "x"], ["moved"]),
            helper.make_node("Gather", ["moved", "wrong"], ["y"], name="emb"),
        ],
        {"x": (TensorProto.FLOAT, [])},
        {"y": (TensorProto.FLOAT, [1, 4])},
        {**TABLE, "wrong": np.array([99])},
    )
    with clrt.load(model, device=_named(device)) as loaded:
        said = "Gather 'emb': an index that the model has as a constant is 99; allowed are -10..9"
        with pytest.raises(ModelError, match=said):
            loaded.run(np.float32(0))


def test_texts_that_the_host_looks_up_are_checked_alike() -> None:
    model = _model(
        [helper.make_node("Gather", ["words", "ids"], ["y"], name="words_of")],
        {**IDS, "words": (TensorProto.STRING, [3])},
        {"y": (TensorProto.STRING, ["n"])},
        {},
    )
    words = np.array(["a", "b", "c"])
    with clrt.load(model) as loaded:
        with pytest.raises(InputError, match="'words_of': an index of input 'ids' is 3; allowed"):
            loaded.run({"ids": np.array([3]), "words": words})
        (y,) = loaded.run({"ids": np.array([-1]), "words": words}).values()
    assert list(y) == ["c"]


def test_each_kernel_that_follows_integers_checks_them() -> None:
    """A kernel with an input of a type that its op chooses for indices has a status, too.

    Those that compare such a number, and never count with it, are named here.
    """
    only_compares = {"one_hot.cl", "recurrent.clh"}
    for path in sorted(KERNELS.rglob("*.cl*")):
        text = path.read_text()
        follows = re.search(r"IN\((INDEX_T|LENS_T), ", text)
        assert not follows or path.name in only_compares or "OUT(long, status)" in text, path.name


def test_each_op_that_follows_an_input_wants_integers_there() -> None:
    """Its kernels have a status in the plan, and `infer_with_data` refuses other dtypes."""
    followers = {(f.op.name, f.operand) for f in _followers()}
    for cls in REGISTRY.classes.values():
        assert {(cls.name, i) for i in cls.followed} <= followers, cls.name
    for cls in (Gather, GatherElements, GatherND, ScatterElements, ScatterND, TensorScatter):
        assert cls.followed, cls.name

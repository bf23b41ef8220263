"""Index errors at run time name the model input and the value out of range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clrt
from clrt.errors import InputError, ModelError
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import DRIVERS


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


TABLE = {"table": np.arange(40, dtype=np.float32).reshape(10, 4)}
ROWS = {"y": (TensorProto.FLOAT, ["n", 4])}
IDS = {"ids": (TensorProto.INT64, ["n"])}


@DRIVERS
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
def test_index_error_names_model_input(
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
    with clrt.load(model, device=device.platform) as loaded:
        feeds = {"ids": np.array([3, 10]), "more": np.array([True, True])}
        for _ in range(2):
            with pytest.raises(InputError, match=f"^Gather 'emb': {said}"):
                loaded.run(feeds)
        feeds["ids"] = np.array([3, 8])
        (y,) = loaded.run(feeds).values()
    offset = 1 if "computed" in said else 0
    np.testing.assert_array_equal(y, TABLE["table"][feeds["ids"] + offset])


@DRIVERS
def test_index_error_in_loop_body_names_model_input(device: DeviceInfo) -> None:
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
    with clrt.load(model, device=device.platform) as loaded:
        feeds = {"ids": np.array([3, -11]), "times": np.array(2)}
        with pytest.raises(
            InputError, match="Gather 'loop/inner': an index of input 'ids' is -11;"
        ):
            loaded.run(feeds)
        feeds["ids"] = np.array([3, -10])
        (y,) = loaded.run(feeds).values()
    np.testing.assert_array_equal(y, np.stack([TABLE["table"][[3, 0]]] * 2))


@DRIVERS
def test_constant_index_out_of_range_raises_model_error(device: DeviceInfo) -> None:
    model = _model(
        [
            helper.make_node("Add", ["table", "x"], ["moved"]),
            helper.make_node("Gather", ["moved", "wrong"], ["y"], name="emb"),
        ],
        {"x": (TensorProto.FLOAT, [])},
        {"y": (TensorProto.FLOAT, [1, 4])},
        {**TABLE, "wrong": np.array([99])},
    )
    with clrt.load(model, device=device.platform) as loaded:
        said = "Gather 'emb': an index in a constant of the model is 99; allowed are -10..9"
        with pytest.raises(ModelError, match=said):
            loaded.run(np.float32(0))


def test_constant_shape_index_out_of_range_is_refused_at_load() -> None:
    model = _model(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "wrong"], ["y"], name="dim"),
        ],
        {"x": (TensorProto.FLOAT, ["n", 4])},
        {"y": (TensorProto.INT64, [])},
        {"wrong": np.array(9)},
    )
    with pytest.raises(ModelError, match="Gather 'dim': an index is 9; allowed are -2"):
        clrt.load(model)


def test_string_gather_index_out_of_range_names_input() -> None:
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

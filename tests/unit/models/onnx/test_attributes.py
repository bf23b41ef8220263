"""ONNX attributes: names and kinds checked against schemas, values checked by ops."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import onnx
import pytest
from onnx import helper

from clrt.errors import ClrtError, InputError, ModelError, ShapeError, UnsupportedError
from clrt.ir.attributes import coerce_attributes
from clrt.ir.dims import UndecidableDim
from clrt.ir.node_errors import NodeErrorContext
from clrt.models.onnx.attributes import check_attributes
from clrt.ops.movement.transpose import Transpose
from clrt.ops.tensor.constant_of_shape import ConstantOfShape
from clrt.ops.vision.pooling import MaxPool
from tools.contrib_attributes import contrib_attributes


def _node(op: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, ["x"], ["y"], **attributes)


def test_contrib_attribute_table_matches_onnx_runtime() -> None:
    text = files("clrt.models.onnx").joinpath("contrib_attributes.json").read_text(encoding="utf-8")
    assert json.loads(text) == contrib_attributes()


@pytest.mark.parametrize(
    ("node", "domain", "opset", "error", "message"),
    [
        (
            _node("Softmax", axis=1.0),
            "",
            13,
            ModelError,
            "'axis' is of kind float, but opset 13 expects int",
        ),
        (_node("Softmax", axis=[1]), "", 13, ModelError, "is of kind ints"),
        (_node("Softmax", axes=1), "", 13, ModelError, "an attribute 'axes', which opset 13"),
        (_node("Concat"), "", 13, ModelError, "lacks its attribute 'axis'"),
        (_node("Gelu", tanh=1), "com.microsoft", 1, UnsupportedError, "its attribute 'tanh'"),
        (
            _node("Scale", scale=1),
            "",
            1,
            ModelError,
            "'scale' is of kind int, but opset 1 expects float",
        ),
    ],
    ids=lambda v: "",
)
def test_invalid_attributes_are_refused(
    node: onnx.NodeProto, domain: str, opset: int, error: type[ClrtError], message: str
) -> None:
    with pytest.raises(error, match=message):
        _check(node, domain, opset)


def _check(node: onnx.NodeProto, domain: str, opset: int) -> None:
    check_attributes(node.op_type, node.attribute, domain, opset)


def test_duplicate_attribute_is_refused() -> None:
    node = _node("Softmax", axis=1)
    node.attribute.append(node.attribute[0])
    with pytest.raises(ModelError, match="'axis' twice"):
        _check(node, "", 13)


def test_valid_attributes_are_accepted() -> None:
    _check(_node("Softmax", axis=1), "", 13)
    _check(_node("Softmax", __hint="x"), "", 13)  # for some runtime's own use
    _check(_node("BatchNormalization"), "", 1)  # consumed_inputs is left out
    _check(_node("Unknown", anything=1), "of.a.user", 1)  # a function of the model


def test_attribute_values_convert_to_field_types() -> None:
    op = MaxPool([2, 2], ceil_mode=1, storage_order=np.int64(1))
    assert (op.kernel_shape, op.ceil_mode, op.storage_order) == ((2, 2), True, 1)
    assert [type(v) for v in (op.kernel_shape, op.ceil_mode, op.storage_order)] == [
        tuple,
        bool,
        int,
    ]
    assert type(ConstantOfShape(5).value) is int
    assert type(ConstantOfShape(np.float32(5)).value) is float
    perm = (1, 0)
    assert Transpose(perm).perm is perm
    coerce_attributes(op)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaxPool("22"), "'kernel_shape' is '22'; expected a list"),
        (lambda: MaxPool((2, "2")), "expected a list of which each is an integer"),
        (lambda: MaxPool((2,), ceil_mode="yes"), "'ceil_mode' is 'yes'; expected 0 or 1"),
        (lambda: MaxPool((2,), auto_pad="SAME"), "expected one of NOTSET, SAME_UPPER"),
        (lambda: MaxPool((1 << 64,)), "an integer of 64 bits"),
        (lambda: Transpose((0, 0)), "'perm' is .*not a permutation of the axes"),
        (lambda: ConstantOfShape("x" * 10**6), r"'x{39}…; expected a number or"),
    ],
)
def test_invalid_attribute_values_are_refused(make: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make()  # type: ignore[operator]


def test_error_context_names_node_once() -> None:
    with (
        pytest.raises(ShapeError, match=r"^Gather 'g': too large$"),
        NodeErrorContext("Gather 'g'"),
    ):
        raise ShapeError("Gather: too large")
    inner = pytest.raises(InputError, match=r"^If 'i': Gather 'g': too large$")
    with inner, NodeErrorContext("If 'i'"), NodeErrorContext("Gather 'g'"):
        raise InputError("too large")
    with pytest.raises(InputError, match=r"^Gather 'g' is odd$"), NodeErrorContext("Gather 'g'"):
        raise InputError("Gather 'g' is odd")
    with (
        pytest.raises(UnsupportedError, match="depends on the input shapes"),
        NodeErrorContext("If 'i'"),
    ):
        raise UndecidableDim("n > 3")


def test_error_context_keeps_original_exception() -> None:
    refused = pytest.raises(ModelError, match=r"^If 'i': .*not valid \(KeyError: 'a'\)")
    with refused as info, NodeErrorContext("If 'i'"):
        {}["a"]
    assert isinstance(info.value.__cause__, KeyError)
    with pytest.raises(KeyboardInterrupt), NodeErrorContext("If 'i'"):
        raise KeyboardInterrupt
    with pytest.raises(AssertionError), NodeErrorContext("If 'i'"):
        raise AssertionError("a bug")

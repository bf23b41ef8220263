"""Small ONNX models for the importer's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 18


def info(name: str, dims: Sequence[Any] | None = (2, 3), dtype: int = TensorProto.FLOAT) -> Any:
    """Returns a declared tensor; None is an unnamed dim."""
    return helper.make_tensor_value_info(name, dtype, dims)


def weight(name: str, array: Any) -> onnx.TensorProto:
    """Returns an initializer."""
    return numpy_helper.from_array(np.asarray(array), name)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    *,
    opset: int = OPSET,
    domains: Sequence[str] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    **graph: Any,
) -> onnx.ModelProto:
    """Returns a model; the default input and output are x and y, float32[2,3]."""
    proto = helper.make_graph(
        list(nodes), "g", list(inputs) or [info("x")], list(outputs) or [info("y")], **graph
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(proto, opset_imports=imports, functions=list(functions))


def function(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    nodes: Sequence[onnx.NodeProto],
    attributes: Sequence[str] = (),
    defaults: Sequence[onnx.AttributeProto] = (),
    overload: str = "",
) -> onnx.FunctionProto:
    """Returns a function of domain "local"."""
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    proto = helper.make_function(
        "local", name, inputs, outputs, nodes, imports, attributes, defaults
    )
    proto.overload = overload
    return proto


def with_reference(node: onnx.NodeProto, name: str, of: str, kind: int) -> onnx.NodeProto:
    """Adds to a node an attribute that refers to an attribute of the enclosing call."""
    node.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=of, type=kind))
    return node

"""ONNX's own node tests as (op, inputs, outputs), for the references of any op types."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops import REGISTRY
from clrt.ops.base import Decompose, OnnxNode, Op
from tests.onnx_suite import cases_of


@dataclass(frozen=True)
class Case:
    """One node test.

    Attributes:
        op: Made by `from_onnx`.
        inputs: As the op of the newest opset has them; None where left out.
        outputs: What ONNX expects, by position; None where the test names no such output.
    """

    name: str
    op: Op
    opset: int
    inputs: list[Array | None]
    outputs: list[Array | None]


@dataclass(frozen=True)
class LeftOut:
    """A node test that is not run, with the reason."""

    name: str
    reason: str


def cases(op_types: Collection[str]) -> list[Case]:
    """Returns the node tests of the op types that clrt can represent."""
    return [found for found in _all(frozenset(op_types)) if isinstance(found, Case)]


def left_out(op_types: Collection[str]) -> list[LeftOut]:
    """Returns the skipped node tests of the op types."""
    return [found for found in _all(frozenset(op_types)) if isinstance(found, LeftOut)]


def attribute(proto: onnx.AttributeProto) -> Any:
    """Returns the Python value of an attribute, as `OnnxNode.attrs` expects it."""
    value = onnx.helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if proto.type in (proto.INTS, proto.FLOATS, proto.STRINGS):
        return [v.decode() if isinstance(v, bytes) else v for v in value]
    return value


@functools.cache
def node_tests() -> tuple[TestCase, ...]:
    """Returns every node test that has a model and data."""
    return tuple(t for t in cases_of("node") if t.model is not None and t.data_sets is not None)


@functools.cache
def _all(op_types: frozenset[str]) -> tuple[Case | LeftOut, ...]:
    return tuple(_read_all(op_types))


def _read_all(op_types: Collection[str]) -> Iterator[Case | LeftOut]:
    for test in node_tests():
        model = test.model
        assert model is not None and test.data_sets is not None
        nodes = model.graph.node
        if not any(n.op_type in op_types for n in nodes):
            continue
        if len(nodes) != 1 or model.graph.initializer:
            yield LeftOut(test.name, f"{len(nodes)} nodes")
            continue
        for inputs, outputs in test.data_sets:
            yield _read(test.name, model, inputs, outputs)


def _read(
    name: str, model: onnx.ModelProto, inputs: Sequence[Any], outputs: Sequence[Any]
) -> Case | LeftOut:
    node = model.graph.node[0]
    domain = "" if node.domain == "ai.onnx" else node.domain
    cls = REGISTRY.find(domain, node.op_type)
    if cls is None:
        return LeftOut(name, f"clrt has no {node.op_type}")
    opset = next(i.version for i in model.opset_import if i.domain in (domain, "ai.onnx"))
    tensors: dict[str, Array] = {}
    values = [*model.graph.input, *model.graph.output]
    for value, given in zip(values, [*inputs, *outputs], strict=True):
        if value.type.WhichOneof("value") != "tensor_type":
            return LeftOut(name, "not all inputs and outputs are tensors")
        array = numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else given
        tensors[value.name] = array = np.asarray(array)
        try:
            DType.of(array.dtype)
        except ValueError:
            return LeftOut(name, f"dtype {array.dtype}")
    expected = [tensors.get(o) for o in node.output]

    def add_constant(array: Array) -> str:
        key = f"constant_{len(tensors)}"
        tensors[key] = array
        return key

    made = OnnxNode(
        node.op_type,
        domain,
        node.name or name,
        opset,
        {a.name: attribute(a) for a in node.attribute},
        list(node.input),
        list(node.output),
        dict(tensors),
        add_constant,
        {n: TensorType(DType.of(a.dtype), a.shape) for n, a in tensors.items()},
    )
    try:
        op = cls.from_onnx(made)
    except UnsupportedError as error:
        return LeftOut(name, str(error))
    except Decompose:
        return LeftOut(name, "it runs as other ops")
    inputs = [tensors[i] if i else None for i in made.inputs]
    return Case(name, op, opset, inputs, expected)


def check_exact(case: Case) -> None:
    """Checks that the reference equals ONNX's outputs exactly, with dtypes and shapes.

    Raises:
        AssertionError: It does not.
    """
    results = case.op.reference(*case.inputs)
    for result, expected in zip(results, case.outputs, strict=False):
        if expected is not None:
            assert result.dtype == expected.dtype, (result.dtype, expected.dtype)
            np.testing.assert_array_equal(result, expected, strict=True)

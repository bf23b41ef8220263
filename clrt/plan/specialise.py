"""Binds the dims of one call: shape arithmetic becomes numbers, and what follows from it folds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clrt.errors import ClrtError, PlanError
from clrt.ir.dims import Bindings
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.ops.base import Op

# A folded result is a constant of the plan; larger ones are computed on the device at each run.
MAX_FOLDED_BYTES = 4 << 20


def specialise(
    graph: Graph, bindings: Bindings, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Graph:
    """A copy of the graph in which every shape is a number.

    Args:
        bindings: A number for each symbol of the input shapes.
        shapes: Shapes of the inputs whose rank the model does not give.

    Raises:
        ShapeError: The shapes do not fit somewhere inside the graph.
        PlanError: A shape depends on computed data.
    """
    copy = graph.copy(bindings)
    for value in copy.inputs:
        if value.shape is None and shapes is not None:
            value.type = TensorType(value.dtype, shapes[value.name])
    kept: list[Node] = []
    for node in copy.nodes:
        _infer(node)
        if not _fold(node):
            kept.append(node)
    copy.nodes = kept
    copy.remove_dead()
    return copy


def _infer(node: Node) -> None:
    assert isinstance(node.op, Op)
    try:
        types = node.op.infer_with_data(node.input_types)
    except ClrtError as error:
        raise type(error)(f"{node.op.name} '{node.name}': {error}") from error
    for value, type_ in zip(node.outputs, types, strict=False):
        if not type_.is_static:
            raise PlanError(
                f"{node.op.name} '{node.name}': the shape of its output '{value.name}' "
                f"({type_}) depends on computed data, which clrt does not support yet."
            )
        value.type = type_


def _fold(node: Node) -> bool:
    """Evaluates a node whose inputs are all known; its outputs become constants."""
    if all(v.numbers is not None for v in node.outputs):
        arrays = [v.numbers for v in node.outputs]
    else:
        if any(v is not None and not v.is_constant for v in node.inputs):
            return False
        if any(_nbytes(v) > MAX_FOLDED_BYTES for v in node.outputs):
            return False
        assert isinstance(node.op, Op)
        inputs = [None if v is None else v.numbers for v in node.inputs]
        arrays = list(node.op.reference(*inputs))
    for value, array in zip(node.outputs, arrays, strict=False):
        data = np.asarray(array, value.dtype.numpy, order="C")
        value.type = TensorType(value.dtype, data.shape, data)
        value.producer = None
    return True


def _nbytes(value: Value) -> int:
    return int(np.prod(value.dims, dtype=np.int64)) * value.dtype.itemsize

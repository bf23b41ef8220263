"""Constants that depend on symbolic sizes: the host recomputes them for each set of sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, cast

import numpy as np

from clrt.ir.graph import Node
from clrt.ir.node_errors import NodeErrorContext
from clrt.ir.op import Array, TensorType, TracedConstant
from clrt.ir.symbolic_trace import Evaluation, ShapeTrace, untraced
from clrt.ir.symbolic_trace import trace_of as traced_by
from clrt.ops.base import Op
from clrt.util.fast_dataclass import dataclass

_Reader: TypeAlias = Callable[[Evaluation], "Array | None"]


def trace_of(types: Iterable[TensorType]) -> ShapeTrace | None:
    """Returns the shape trace that known elements of the tensors depend on; None if none do."""
    for type_ in types:
        known = type_.known_elements
        if isinstance(known, TracedConstant):
            return known.trace
        if isinstance(known, np.ndarray) and known.dtype == object:
            return traced_by(known.flat)
    return None


def derive(node: Node, trace: ShapeTrace) -> None:
    """Evaluates a node; turns its outputs into constants that are recomputed for other sizes.

    Args:
        node: Node whose inputs have known elements.
        trace: Trace of the sizes that the node's inputs depend on.
    """
    derivation = Derivation(node, trace)
    arrays = derivation.now()
    for index, (value, array) in enumerate(zip(node.outputs, arrays, strict=False)):
        elements = TracedConstant(array, trace, DerivedOutput(derivation, index))
        value.type = TensorType(value.dtype, value.shape, elements)
        value.producer = None


@dataclass(frozen=True, eq=False)
class DerivedOutput:
    """Function that returns one output of a node at other sizes, which an evaluation has.

    Attributes:
        derivation: Recomputes all outputs of the node.
        index: Index of the output among them.
    """

    derivation: Derivation
    index: int

    def __call__(self, evaluation: Evaluation) -> Array:
        return self.derivation.outputs(evaluation)[self.index]


class Derivation:
    """Recomputes the outputs of a node at other sizes, once per evaluation of the shape trace.

    Attributes:
        node: The node.
        inputs: Types of the node's inputs, with known elements; None for an absent input.
    """

    def __init__(self, node: Node, trace: ShapeTrace) -> None:
        self.node = node
        self.inputs = [None if v is None else v.type for v in node.inputs]
        self._dtypes = [v.dtype.numpy for v in node.outputs]
        self._readers = [None if t is None else _reader(t, trace) for t in self.inputs]

    def now(self) -> list[Array]:
        """Returns the node's outputs at the sizes with which the trace was recorded."""
        return self._compute([None if t is None else _traced_array(t) for t in self.inputs])

    def outputs(self, evaluation: Evaluation) -> list[Array]:
        """Returns the node's outputs at the sizes of an evaluation."""
        if self not in evaluation.arrays:
            inputs = [None if r is None else r(evaluation) for r in self._readers]
            evaluation.arrays[self] = self._compute(inputs)
        return cast("list[Array]", evaluation.arrays[self])

    def _compute(self, inputs: list[Array | None]) -> list[Array]:
        with NodeErrorContext(self.node):
            arrays = self.node.op_as(Op).run_reference(*inputs)
        pairs = zip(arrays, self._dtypes, strict=False)
        return [np.asarray(a, dtype, order="C") for a, dtype in pairs]


def _traced_array(type_: TensorType) -> Array:
    """Returns the known elements of a type, at the sizes with which the trace was recorded."""
    known = type_.known_elements
    if isinstance(known, TracedConstant):
        return known.array
    data = type_.data
    assert data is not None
    if data.dtype != object:
        return data
    return np.array([untraced(x) for x in data.flat], type_.dtype.numpy).reshape(data.shape)


def _reader(type_: TensorType, trace: ShapeTrace) -> _Reader:
    """Returns a function that computes a type's known elements from an `Evaluation` of the trace.

    Args:
        trace: Trace of the sizes that the elements depend on.
    """
    known = type_.known_elements
    if isinstance(known, TracedConstant):
        return known.derive
    data = type_.data
    assert data is not None
    if data.dtype != object:
        return lambda _: data
    formulas, shape = [trace.formula(x) for x in data.flat], data.shape
    dtype = type_.dtype.numpy
    return lambda at: np.array([at.numbers[i] for i in formulas], dtype).reshape(shape)

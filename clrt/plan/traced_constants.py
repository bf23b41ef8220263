"""Constants that the host computes of the sizes of a call, while planning traces these."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType, TracedConstant
from clrt.ir.symbolic_trace import Evaluation, ShapeTrace, untraced
from clrt.ir.symbolic_trace import trace_of as traced_by
from clrt.ops.base import Op
from clrt.ops.node_errors import NodeErrorContext

_Reader: TypeAlias = Callable[[Evaluation], "Array | None"]


def trace_of(types: Iterable[TensorType]) -> ShapeTrace | None:
    """The trace that elements depend on; None where they are the same at all sizes."""
    for type_ in types:
        known = type_.known_elements
        if isinstance(known, TracedConstant):
            return known.trace
        if isinstance(known, np.ndarray) and known.dtype == object:
            return traced_by(known.flat)
    return None


def derive(node: Node, trace: ShapeTrace) -> None:
    """Evaluates a node; its outputs become constants that are computed anew for other sizes."""
    derivation = _Derivation(node, trace)
    arrays = derivation.now()
    for index, (value, array) in enumerate(zip(node.outputs, arrays, strict=False)):
        elements = TracedConstant(array, trace, derivation.reader(index))
        value.type = TensorType(value.dtype, value.shape, elements)
        value.producer = None


class _Derivation:
    """The outputs of a node, computed of the numbers of an evaluation."""

    def __init__(self, node: Node, trace: ShapeTrace) -> None:
        self._node = node
        self._dtypes = [v.dtype.numpy for v in node.outputs]
        self._inputs = [None if v is None else v.type for v in node.inputs]
        self._readers = [None if t is None else _reader(t, trace) for t in self._inputs]

    def now(self) -> list[Array]:
        """The outputs at the sizes of the trace."""
        return self._compute([None if t is None else _traced_array(t) for t in self._inputs])

    def reader(self, index: int) -> Callable[[Evaluation], Array]:
        """Gives one output."""

        def read(evaluation: Evaluation) -> Array:
            if self not in evaluation.arrays:
                inputs = [None if r is None else r(evaluation) for r in self._readers]
                evaluation.arrays[self] = self._compute(inputs)
            found: Array = evaluation.arrays[self][index]
            return found

        return read

    def _compute(self, inputs: list[Array | None]) -> list[Array]:
        assert isinstance(self._node.op, Op)
        with NodeErrorContext(self._node):
            arrays = self._node.op.run_reference(*inputs)
        pairs = zip(arrays, self._dtypes, strict=False)
        return [np.asarray(a, dtype, order="C") for a, dtype in pairs]


def _traced_array(type_: TensorType) -> Array:
    """The elements at the sizes of the trace."""
    known = type_.known_elements
    if isinstance(known, TracedConstant):
        return known.array
    found = type_.data
    assert found is not None
    if found.dtype != object:
        return found
    return np.array([untraced(x) for x in found.flat], type_.dtype.numpy).reshape(found.shape)


def _reader(type_: TensorType, trace: ShapeTrace) -> _Reader:
    known = type_.known_elements
    if isinstance(known, TracedConstant):
        return known.derive
    found = type_.data
    assert found is not None
    if found.dtype != object:
        return lambda _: found
    formulas, shape = [trace.formula(x) for x in found.flat], found.shape
    dtype = type_.dtype.numpy
    return lambda at: np.array([at.numbers[i] for i in formulas], dtype).reshape(shape)


elements_of = _reader

"""What planning made of traced sizes, made again with the numbers of other sizes."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

import numpy as np

from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import (
    Array,
    ConcatenatedRows,
    PackedConstant,
    TensorType,
    TracedConstant,
)
from clrt.ir.symbolic_trace import Evaluation, ShapeTrace, is_traced
from clrt.kernels.spec import Launch, Scratch, i32

_Thing = TypeVar("_Thing")


class TemplateInstantiator:
    """Copies of what a trace made, at other sizes, each made once.

    What is the same at all sizes stays the object that it is: weights, kernels, ops.
    """

    def __init__(self, trace: ShapeTrace, evaluation: Evaluation) -> None:
        self._trace, self._evaluation = trace, evaluation
        self._made: dict[int, Any] = {}
        self._sources: dict[int, Any] = {}

    def __call__(self, thing: _Thing) -> _Thing:
        """The copy of a graph, of steps, of a buffer."""
        return cast(_Thing, self._copy(thing))

    def source(self, copy: _Thing) -> _Thing:
        """The traced value, or scratch, that one is a copy of."""
        return cast(_Thing, self._sources.get(id(copy), copy))

    def _copy(self, thing: Any) -> Any:
        if is_traced(thing):
            return self._number(thing)
        if isinstance(thing, (tuple, list)):
            copies = [self._copy(x) for x in thing]
            same = all(a is b for a, b in zip(copies, thing, strict=True))
            return thing if same else type(thing)(copies)
        if isinstance(thing, (type, PackedConstant, ConcatenatedRows)) or not is_dataclass(thing):
            return thing
        if id(thing) not in self._made:
            self._made[id(thing)] = copy = self._record(thing)
            if isinstance(thing, (Value, Scratch)):
                self._sources[id(copy)] = thing
        return self._made[id(thing)]

    def _number(self, traced: int) -> int:
        return self._evaluation.numbers[self._trace.formula(traced)]

    def _record(self, thing: Any) -> Any:
        if isinstance(thing, Graph):
            values = self._copies(thing.inputs), self._copies(thing.outputs)
            return Graph(thing.name, *values, self._copies(thing.nodes), list(thing.output_names))
        if isinstance(thing, Node):
            op, inputs = self._copy(thing.op), self._copies(thing.inputs)
            outputs = self._copies(thing.outputs)
            return Node(thing.name, op, inputs, outputs, thing.origins, thing.made_by)
        return self._value(thing) if isinstance(thing, Value) else self._changed(thing)

    def _value(self, value: Value) -> Value:
        if value.is_constant:
            type_ = self._copy(value.type)
            if type_ is value.type:
                return value
        else:
            # What a plan computes are tensors of static shapes; a graph may have many inputs.
            shape, number = value.type.static_shape or (), self._number
            type_ = TensorType(
                value.dtype, tuple([number(d) if is_traced(d) else d for d in shape])
            )
        return Value(value.name, type_, None, value.symbolic_shape, value.aliases)

    def _copies(self, things: list[_Thing]) -> list[_Thing]:
        return [self._copy(x) for x in things]

    def _changed(self, thing: Any) -> Any:
        """A dataclass with other fields; the thing itself where all are the same."""
        old = {f.name: getattr(thing, f.name) for f in fields(thing) if f.init}
        new = {name: self._copy(x) for name, x in old.items()}
        if isinstance(thing, TensorType):
            new["known_elements"] = self._elements(thing)
        elif isinstance(thing, Launch):
            pairs = zip(new["args"], thing.args, strict=True)
            new["args"] = tuple(i32(a) if is_traced(b) else a for a, b in pairs)
        return thing if all(new[n] is old[n] for n in old) else type(thing)(**new)

    def _elements(
        self, type_: TensorType
    ) -> Array | PackedConstant | ConcatenatedRows | TracedConstant | None:
        known = type_.known_elements
        if isinstance(known, TracedConstant):
            return known.derive(self._evaluation)
        if (
            isinstance(known, np.ndarray)
            and known.dtype == object
            and any(map(is_traced, known.flat))
        ):
            return np.array([self._copy(x) for x in known.flat], type_.dtype.numpy).reshape(
                known.shape
            )
        return known

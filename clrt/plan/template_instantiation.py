"""Copies traced plans, with formulas of the sizes replaced by their values for one call."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
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
from clrt.ir.symbolic_trace import Evaluation, TracedInt, is_traced
from clrt.kernels.spec import KernelSpec, Launch, Scratch, i32
from clrt.util.background import yield_point

_T = TypeVar("_T")


@cache
def _is_copied(kind: type) -> bool:
    """Returns whether objects of a class may hold traced numbers."""
    shared = (PackedConstant, ConcatenatedRows, KernelSpec)
    return is_dataclass(kind) and not issubclass(kind, shared)


@cache
def _fields_of(kind: type) -> tuple[str, ...]:
    """Returns the names of the fields that the constructor of a dataclass takes."""
    return tuple(f.name for f in fields(kind) if f.init)


class TemplateInstantiator:
    """Copies traced objects of a plan with formulas replaced by numbers, each object once.

    Weights, kernels and ops that do not depend on the sizes are shared, not copied.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._instances: dict[int, Any] = {}
        self._sources: dict[int, Any] = {}

    def __call__(self, traced: _T) -> _T:
        """Returns the copy, at the call's sizes, of a traced graph, node, value, step or launch."""
        return cast(_T, self._copy(traced))

    def source(self, copy: _T) -> _T:
        """Returns the traced original of a copied value or scratch buffer.

        An object that is not a copy made by this instantiator is returned unchanged.
        """
        return cast(_T, self._sources.get(id(copy), copy))

    def _copy(self, traced: Any) -> Any:
        """Returns an object with traced numbers replaced by their values; itself if it has none."""
        copy = self._instances.get(id(traced))
        if copy is not None:
            return copy
        if is_traced(traced):
            return self._number(traced)
        if isinstance(traced, (tuple, list)):
            copies = [self._copy(x) for x in traced]
            same = all(a is b for a, b in zip(copies, traced, strict=True))
            return traced if same else type(traced)(copies)
        kind: Any = type(traced)
        if not _is_copied(kind):
            return traced
        self._instances[id(traced)] = copy = self._build(traced)
        if isinstance(traced, (Value, Scratch)):
            self._sources[id(copy)] = traced
        return copy

    def _number(self, traced: int) -> int:
        return self._evaluation.numbers[cast(TracedInt, traced).index]

    def _build(self, traced: Any) -> Any:
        """Copies a traced graph, node, value or other dataclass instance, without the cache."""
        yield_point()
        if isinstance(traced, Graph):
            values = self._copies(traced.inputs), self._copies(traced.outputs)
            return Graph(
                traced.name, *values, self._copies(traced.nodes), list(traced.output_names)
            )
        if isinstance(traced, Node):
            op, inputs = self._copy(traced.op), self._copies(traced.inputs)
            outputs = self._copies(traced.outputs)
            return Node(traced.name, op, inputs, outputs, traced.origins, traced.made_by)
        return self._value(traced) if isinstance(traced, Value) else self._with_fields(traced)

    def _value(self, value: Value) -> Value:
        """Copies a value with its dims as numbers; shares a constant without traced numbers."""
        if value.is_constant:
            type_ = self._copy(value.type)
            if type_ is value.type:
                return value
        else:
            # Computed values have static shapes; copying these directly is faster with many inputs.
            shape, numbers = value.type.static_shape or (), self._evaluation.numbers
            dims = [numbers[d.index] if isinstance(d, TracedInt) else d for d in shape]
            type_ = TensorType(value.type.dtype, tuple(dims))
        return Value(value.name, type_, None, value.symbolic_shape, value.aliases)

    def _copies(self, traced: list[_T]) -> list[_T]:
        return [self._copy(x) for x in traced]

    def _with_fields(self, traced: Any) -> Any:
        """Copies a traced dataclass instance, with formulas in its fields replaced by numbers.

        Returns the instance itself if no field changed.
        """
        kind: Any = type(traced)
        old = {name: getattr(traced, name) for name in _fields_of(kind)}
        new = {name: self._copy(x) for name, x in old.items()}
        if isinstance(traced, TensorType):
            new["known_elements"] = self._elements(traced)
        elif isinstance(traced, Launch):
            pairs = zip(new["args"], traced.args, strict=True)
            new["args"] = tuple(i32(a) if is_traced(b) else a for a, b in pairs)
        return traced if all(new[n] is old[n] for n in old) else type(traced)(**new)

    def _elements(
        self, type_: TensorType
    ) -> Array | PackedConstant | ConcatenatedRows | TracedConstant | None:
        """Returns a type's known elements; those that depend on sizes are recomputed."""
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

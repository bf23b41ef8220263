"""Exports constants with symbolic elements as nodes that compute them from shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ir.dims import Dim, UndecidableDim, provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array

_BINARY = {"floordiv": "Div", "mod": "Mod", "max": "Max", "min": "Min"}


class AddsOnnxNodes(Protocol):
    """Interface of an exporter to which nodes and initializers can be added."""

    def add(self, op_type: str, inputs: Sequence[str], name: str, **attributes: int) -> str:
        """Adds a node with one output.

        Args:
            op_type: Name of the op.
            inputs: Names of the inputs.
            name: Wanted name of the output; if it is in use, a similar one is chosen.
            attributes: Attributes of the node.

        Returns:
            Name of the output.
        """

    def numbers(self, data: Array, name: str) -> str:
        """Adds an initializer; returns its name: `name`, or a similar one if that is in use."""


class SymbolicConstants:
    """Adds nodes that compute constants with symbolic elements; each dim is computed once.

    Args:
        nodes: Exporter to which the nodes are added.
        source: Returns (name of a value, axis) whose size is a given symbol; None if there is none.
    """

    def __init__(
        self, nodes: AddsOnnxNodes, source: Callable[[str], tuple[str, int] | None]
    ) -> None:
        self._nodes = nodes
        self._source = source
        self._emitted: dict[str, str] = {}

    def constant(self, value: Value) -> str:
        """Adds nodes that compute a constant with symbolic elements.

        Returns:
            Name of the computed value, which has the constant's dtype and shape.

        Raises:
            UnsupportedError: A symbol is not the size of any value's axis.
        """
        data = value.type.data
        assert data is not None
        flat: list[Dim] = list(data.reshape(-1))
        parts: list[str] = []
        run: list[int] = []
        for dim in [*flat, None]:
            if isinstance(dim, int):
                run.append(dim)
                continue
            if run:
                parts.append(self._nodes.numbers(np.array(run, np.int64), f"{value.name}/numbers"))
                run = []
            if dim is not None:
                parts.append(self.dim(dim))
        name = value.name
        result = parts[0] if len(parts) == 1 else self._nodes.add("Concat", parts, name, axis=0)
        if data.ndim != 1:
            shape = self._nodes.numbers(np.array(data.shape, np.int64), f"{name}/shape")
            result = self._nodes.add("Reshape", [result, shape], name)
        if value.dtype is not DType.INT64:
            result = self._nodes.add("Cast", [result], name, to=value.dtype.onnx)
        return result

    def dim(self, dim: Dim) -> str:
        """Adds nodes that compute a dim; none if it is computed already.

        Returns:
            Name of the computed value, int64 `[1]`.

        Raises:
            UnsupportedError: A symbol is not the size of any value's axis.
        """
        key = str(dim)
        if key not in self._emitted:
            self._emitted[key] = self._emit(dim)
        return self._emitted[key]

    def _emit(self, dim: Dim) -> str:
        if isinstance(dim, int):
            return self._nodes.numbers(np.array([dim], np.int64), f"dim/{dim}")
        total = ""
        for monomial, coefficient in dim.terms.items():
            factors = [self._atom(a.name, a.args) for a in monomial]
            if coefficient != 1 or not factors:
                factors.append(self.dim(coefficient))
            product = factors[0]
            for factor in factors[1:]:
                product = self._nodes.add("Mul", [product, factor], f"dim/{dim}")
            total = self._nodes.add("Add", [total, product], f"dim/{dim}") if total else product
        return total

    def _atom(self, name: str, args: tuple[Dim, ...]) -> str:
        """Adds nodes that compute a symbol, or an operation on two dims; returns the output's name.

        Args:
            name: Name of the symbol or of the operation ("floordiv").
            args: Operands of the operation; () for a symbol.
        """
        if not args:
            return self._symbol(name)
        left, right = (self.dim(a) for a in args)
        label = f"dim/{name}"
        if name == "broadcast":
            is_one = self._nodes.add("Equal", [left, self.dim(1)], label)
            return self._nodes.add("Where", [is_one, right, left], label)
        if name == "floordiv" and not all(map(_is_natural, args)):
            # ONNX's Div truncates, so the remainder is subtracted first.
            rest = self._nodes.add("Mod", [left, right], label)
            left = self._nodes.add("Sub", [left, rest], label)
        return self._nodes.add(_BINARY[name], [left, right], label)

    def _symbol(self, name: str) -> str:
        """Adds a Shape node that computes a symbol; returns the name of the node's output.

        Returns the name of the first node's output if the symbol is computed already.

        Raises:
            UnsupportedError: The symbol is not the size of any value's axis.
        """
        if name not in self._emitted:
            location = self._source(name)
            if location is None:
                raise UnsupportedError(
                    f"The dim '{name}' is not the size of any value in the graph, so no ONNX node "
                    "can compute it; give the model's inputs the dims from which it is computed."
                )
            value, axis = location
            self._emitted[name] = self._nodes.add(
                "Shape", [value], f"dim/{name}", start=axis, end=axis + 1
            )
        return self._emitted[name]


def _is_natural(dim: Dim) -> bool:
    try:
        return dim >= 0
    except UndecidableDim:
        return False


def reshape_numbers(node: Node) -> Array | None:
    """Returns the target shape of a Reshape without symbols, for `allowzero` = 0.

    A symbolic dim becomes 0 if the input has the same dim on this axis, else -1.

    Returns:
        int64 `[rank]`; None if the target or the input's rank is unknown, more than one dim would
        be -1, or a dim is 0 in a Reshape with `allowzero`.
    """
    x, target = node.arg(0), node.arg(1)
    data = target.type.data
    if data is None or data.ndim != 1 or x.shape is None:
        return None
    if getattr(node.op, "allowzero", False) and any(provably_equal(dim, 0) for dim in data):
        return None
    sizes: list[int] = []
    for index, dim in enumerate(data.tolist()):
        if isinstance(dim, int):
            sizes.append(dim)
        else:
            sizes.append(0 if index < len(x.shape) and provably_equal(dim, x.shape[index]) else -1)
    return np.array(sizes, np.int64) if sizes.count(-1) <= 1 else None

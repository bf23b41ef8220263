"""Builder of nodes and constants for a graph or a patch; infers types as nodes are added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from clrt.ir.dims import Bindings, Dim, Shape, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Names, Node, Patch, Value
from clrt.ir.op import Array, ConcatenatedRows, IrOp, TensorType

# Maximum number of elements of a constant that is shared with equal ones.
_MAX_INTERNED = 64

Self = TypeVar("Self", bound="Builder")


class Builder:
    """Creates nodes and constants in topological order, for a graph or a patch.

    Attributes:
        nodes: The nodes created so far.
        inputs: Graph inputs, in the order of the calls of `feed`.
        names: Generates unique names.

    Args:
        names: Names of the surrounding graph; None for a new graph.
        origin: Prefix of generated names: the node or graph that the new nodes replace; "" for
            none.
        suffix: Second part of generated names, after the origin; "" for the name of the op.
        origins: Names of the ONNX nodes that the new nodes stand for; if empty, each new node is
            its own origin.
        made_by: Name of the pass that creates the nodes; "" outside of passes.
        nodes: List to which the nodes are appended; None for a new list.
    """

    def __init__(
        self,
        names: Names | None = None,
        origin: str = "",
        suffix: str = "",
        *,
        origins: tuple[str, ...] = (),
        made_by: str = "",
        nodes: list[Node] | None = None,
    ) -> None:
        self.nodes: list[Node] = [] if nodes is None else nodes
        self.inputs: list[Value] = []
        self.names = Names() if names is None else names
        self._origin = origin
        self._suffix = suffix
        self._origins = origins
        self._made_by = made_by
        self._inferred: dict[Node, list[TensorType]] = {}
        self._interned: dict[tuple[DType, tuple[int, ...], bytes], Value] = {}

    def under(self: Self, origin: str) -> Self:
        """Returns a builder of the same graph whose nodes are named after `origin`."""
        builder = object.__new__(type(self))  # a quarter of the time of copy.copy
        vars(builder).update(vars(self))
        builder._origin = origin
        return builder

    def add(self, op: IrOp, *inputs: Value | None, types: list[TensorType] | None = None) -> Value:
        """Adds a node with inferred types; returns its first output.

        Args:
            op: The op.
            inputs: Inputs of the op; None for an absent optional input.
            types: Output types, if the caller knows what the op infers.

        Raises:
            ShapeError: The inputs do not fit the op.
            ModelError: A required input is missing, or an attribute is invalid.
        """
        return self.add_all(op, *inputs, types=types)[0]

    def add_all(
        self, op: IrOp, *inputs: Value | None, types: list[TensorType] | None = None
    ) -> list[Value]:
        """Adds a node with inferred types; returns all its outputs.

        Args:
            op: The op.
            inputs: Inputs of the op; None for an absent optional input.
            types: Output types, if the caller knows what the op infers.

        Raises:
            ShapeError: The inputs do not fit the op.
            ModelError: A required input is missing, or an attribute is invalid.
        """
        values = list(inputs)
        # With subgraphs, the number of inputs tells which values they capture.
        while values and values[-1] is None and not op.graphs:
            values.pop()
        if types is None:
            types = op.infer_with_data([None if v is None else v.type for v in values])
        name = self._fresh(op.name)
        results = [f"{name}:{k}" if k else name for k in range(len(types))]
        node = self.emit(op, values, name, results, types)
        self._inferred[node] = types
        return node.outputs

    def emit(
        self,
        op: IrOp,
        inputs: Sequence[Value | None],
        name: str,
        outputs: Sequence[str],
        types: Sequence[TensorType],
    ) -> Node:
        """Adds a node without type inference; returns the node.

        Args:
            op: The op.
            inputs: Inputs of the op; None for an absent optional input.
            name: Name of the node.
            outputs: Names of the outputs.
            types: Types of the outputs.
        """
        values = [Value(n, t) for n, t in zip(outputs, types, strict=True)]
        node = Node(name, op, list(inputs), values, self._origins, self._made_by)
        self.nodes.append(node)
        return node

    def inline(
        self, graph: Graph, inputs: Sequence[Value | None], bindings: Bindings | None = None
    ) -> list[Value]:
        """Adds copies of all nodes of a graph, with the same names; returns the copied outputs.

        Args:
            graph: The graph to copy.
            inputs: Values that replace the graph's inputs; None for absent ones.
            bindings: Size by symbol, to substitute; None to substitute none.
        """
        body = graph.over(inputs, bindings)
        self.nodes += body.nodes
        return body.outputs

    def input(self, name: str, dtype: DType, shape: Shape | None) -> Value:
        """Returns a new value without a producer, to be an input of a graph.

        Args:
            shape: One dim per axis; None if the rank is unknown.
        """
        return Value(self.names.unique(name), TensorType(dtype, shape))

    def feed(self, name: str, dtype: DType, *shape: Dim | str) -> Value:
        """Adds a graph input and returns it.

        Args:
            name: Name of the input.
            dtype: Dtype of the input.
            shape: One dim per axis; a string is the name of a symbol.
        """
        dims = tuple(symbol(d) if isinstance(d, str) else d for d in shape)
        self.inputs.append(self.input(name, dtype, dims))
        return self.inputs[-1]

    def constant(self, array: Array | ConcatenatedRows) -> Value:
        """Returns a new constant with the elements of `array`."""
        return self._value(TensorType.of(array))

    def numbers(self, value: Any, dtype: DType = DType.INT64) -> Value:
        """Returns a constant of numbers; equal small constants are shared.

        Args:
            value: A number, or nested lists of numbers.
        """
        array = np.asarray(value, dtype.numpy)
        if array.size > _MAX_INTERNED:
            return self._value(TensorType(dtype, array.shape, array))
        key = dtype, array.shape, array.tobytes()
        if key not in self._interned:
            self._interned[key] = self._value(TensorType(dtype, array.shape, array))
        return self._interned[key]

    def ints(self, *values: int) -> Value:
        """Returns an int64 constant `[n]` of n integers."""
        return self.numbers(values)

    def dims(self, dims: Sequence[Dim]) -> Value:
        """Returns an int64 constant `[n]` of n dims, which may be symbolic."""
        return self._value(TensorType.of_dims(dims))

    def dim(self, dim: Dim) -> Value:
        """Returns an int64 scalar constant that holds a dim, which may be symbolic."""
        if isinstance(dim, int):
            return self.numbers(dim)
        data = np.empty((), object)
        data[()] = dim
        return self._value(TensorType(DType.INT64, (), data))

    def patch(self, replace: dict[Value, Value]) -> Patch:
        """Returns a patch that adds the nodes created so far and replaces values.

        Args:
            replace: New value by old value; types of new values are intersected with the old ones.
        """
        new_nodes = set(self.nodes)
        typed = frozenset(
            node
            for node, types in self._inferred.items()
            if all(v.type is t for v, t in zip(node.outputs, types, strict=True))
        )
        for old, new in replace.items():
            if new.producer in new_nodes:
                new.type = old.type.intersect(new.type)
        return Patch(replace, self.nodes, typed)

    def graph(
        self,
        name: str,
        inputs: Iterable[Value],
        outputs: Iterable[Value],
        output_names: Sequence[str] = (),
    ) -> Graph:
        """Returns a graph of the nodes created so far.

        Args:
            name: Name of the graph.
            inputs: Inputs of the graph.
            outputs: Outputs of the graph.
            output_names: Names of the outputs that the user sees; empty to use the values' names.
        """
        return Graph(name, list(inputs), list(outputs), self.nodes, list(output_names))

    def _value(self, type_: TensorType) -> Value:
        return Value(self._fresh("constant"), type_)

    def _fresh(self, kind: str) -> str:
        if not self._origin:
            return self.names.unique(self._suffix or kind)
        return self.names.fresh(self._origin, self._suffix or kind)

"""Makes nodes and constants, typed as they are added, for a graph or a patch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from clrt.ir.dims import Bindings, Dim, Shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Names, Node, Patch, Value
from clrt.ir.op import Array, ConcatenatedRows, IrOp, TensorType

# Larger constants are not worth comparing.
_MAX_INTERNED = 64


class Builder:
    """Collects new nodes in topological order.

    Attributes:
        nodes: The nodes so far.
        names: Where names come from, each once.

    Args:
        names: Names that are taken; None for those of a graph of its own.
        origin: Goes in front of made-up names: the node or graph that the nodes stand for.
        suffix: Follows the origin in names; empty for the name of the op.
        origins: Names of the ONNX nodes that the nodes stand for; each its own where empty.
        made_by: The pass that makes the nodes.
        nodes: A list that the nodes are added to.
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
        self.names = Names() if names is None else names
        self._origin = origin
        self._suffix = suffix
        self._origins = origins
        self._made_by = made_by
        self._inferred: dict[Node, list[TensorType]] = {}
        self._interned: dict[tuple[DType, tuple[int, ...], bytes], Value] = {}

    def add(self, op: IrOp, *inputs: Value | None) -> Value:
        """The first output of a new node; its type is inferred.

        Raises:
            ShapeError, ModelError: What `IrOp.infer` raises.
        """
        return self.add_all(op, *inputs)[0]

    def add_all(self, op: IrOp, *inputs: Value | None) -> list[Value]:
        """Every output of a new node; raises what `add` does."""
        given = list(inputs)
        # Where there are graphs, it is the number of inputs that says which are captured.
        while given and given[-1] is None and not op.graphs:
            given.pop()
        types = op.infer_with_data([None if v is None else v.type for v in given])
        name = self._fresh(op.name)
        results = [f"{name}:{k}" if k else name for k in range(len(types))]
        node = self.emit(op, given, name, results, types)
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
        """A new node whose name, output names and types are decided elsewhere."""
        values = [Value(n, t) for n, t in zip(outputs, types, strict=True)]
        made = Node(name, op, list(inputs), values, self._origins, self._made_by)
        self.nodes.append(made)
        return made

    def inline(
        self, graph: Graph, inputs: Sequence[Value | None], bindings: Bindings | None = None
    ) -> list[Value]:
        """The outputs of a copy of a graph that reads these values in place of its inputs.

        Its nodes keep their names.
        """
        body = graph.over(inputs, bindings)
        self.nodes += body.nodes
        return body.outputs

    def input(self, name: str, dtype: DType, shape: Shape | None) -> Value:
        """A new value that no node computes, for a graph's input."""
        return Value(self.names.unique(name), TensorType(dtype, shape))

    def constant(self, array: Array | ConcatenatedRows) -> Value:
        """A constant of these elements."""
        return self._value(TensorType.of(array))

    def numbers(self, value: Any, dtype: DType = DType.INT64) -> Value:
        """A constant of a dtype, from numbers in nested lists; small equal ones are one value."""
        array = np.asarray(value, dtype.numpy)
        if array.size > _MAX_INTERNED:
            return self._value(TensorType(dtype, array.shape, array))
        key = dtype, array.shape, array.tobytes()
        if key not in self._interned:
            self._interned[key] = self._value(TensorType(dtype, array.shape, array))
        return self._interned[key]

    def ints(self, *values: int) -> Value:
        """An int64 list [n]."""
        return self.numbers(values)

    def dims(self, dims: Sequence[Dim]) -> Value:
        """An int64 list [n] of dims, symbolic where they are."""
        return self._value(TensorType.of_dims(dims))

    def dim(self, dim: Dim) -> Value:
        """A dim as int64[], symbolic where it is."""
        if isinstance(dim, int):
            return self.numbers(dim)
        data = np.empty((), object)
        data[()] = dim
        return self._value(TensorType(DType.INT64, (), data))

    def patch(self, replace: dict[Value, Value]) -> Patch:
        """The patch of the nodes so far; new values learn what was known of the old ones."""
        made = set(self.nodes)
        typed = frozenset(
            node
            for node, types in self._inferred.items()
            if all(v.type is t for v, t in zip(node.outputs, types, strict=True))
        )
        for old, new in replace.items():
            if new.producer in made:
                new.type = old.type.intersect(new.type)
        return Patch(replace, self.nodes, typed)

    def graph(
        self,
        name: str,
        inputs: Iterable[Value],
        outputs: Iterable[Value],
        output_names: Sequence[str] = (),
    ) -> Graph:
        """The graph of the nodes so far."""
        return Graph(name, list(inputs), list(outputs), self.nodes, list(output_names))

    def _value(self, type_: TensorType) -> Value:
        return Value(self._fresh("constant"), type_)

    def _fresh(self, kind: str) -> str:
        if not self._origin:
            return self.names.unique(self._suffix or kind)
        return self.names.fresh(self._origin, self._suffix or kind)

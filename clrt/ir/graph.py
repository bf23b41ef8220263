"""The IR graph: typed values, and nodes in topological order.

Nodes and values are compared by identity. Only the importer, and the pass driver by applying a
`Patch`, modify a graph; all other code reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TypeVar, overload

from clrt.errors import PassError
from clrt.ir.dims import Shape, Substitutes
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, IrOp, TensorType
from clrt.util.fast_dataclass import dataclass

OpT = TypeVar("OpT", bound=IrOp)
OtherOpT = TypeVar("OtherOpT", bound=IrOp)


@dataclass(eq=False)
class Value:
    """A tensor in the graph: a graph input, a constant, or the output of one node.

    Attributes:
        name: Unique in the graph; ONNX names are kept.
        type: Dtype, shape and, for constants and shape arithmetic, the elements.
        producer: The node that computes the value; None for inputs and constants.
        symbolic_shape: In a copy of a graph, such as a specialised one, the shape before dims were
            bound. None in other graphs, and if the model declares a wrong shape.
        aliases: Names of other values, with the same elements, that passes replaced by this value.
    """

    name: str
    type: TensorType
    producer: Node | None = None
    symbolic_shape: Shape | None = None
    aliases: tuple[str, ...] = ()

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape | None:
        return self.type.shape

    @property
    def is_constant(self) -> bool:
        """Whether the elements are known and no node computes them."""
        return self.producer is None and self.type.known_elements is not None

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of the value as numbers.

        Raises:
            PassError: The shape is not static.
        """
        shape = self.type.static_shape
        if shape is None:
            raise PassError(f"'{self.name}' has no static shape: {self.type}")
        return shape

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes.

        Raises:
            PassError: The shape is not static.
        """
        return math.prod(self.dims) * self.dtype.itemsize

    @property
    def has_numbers(self) -> bool:
        """Whether the elements are known and none of them is symbolic."""
        return self.type.has_numbers

    @property
    def numbers(self) -> Array | None:
        """The known elements if none of them is symbolic, else None."""
        return self.type.numbers

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


@dataclass(eq=False)
class Node:
    """One operator applied to values.

    Attributes:
        name: Unique in the graph.
        op: The operator with its attributes.
        inputs: Input values; None for an absent optional input.
        outputs: Output values.
        origins: Names of the ONNX nodes that the node stands for; its own name if there are none.
        made_by: Name of the pass that created the node; "" for imported nodes.
    """

    name: str
    op: IrOp
    inputs: list[Value | None]
    outputs: list[Value]
    origins: tuple[str, ...] = ()
    made_by: str = ""

    def __post_init__(self) -> None:
        self.origins = self.origins or (self.name,)
        for output in self.outputs:
            output.producer = self

    @property
    def output(self) -> Value:
        """The first output of the node."""
        return self.outputs[0]

    def input(self, index: int) -> Value | None:
        """Returns an input by index; None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def arg(self, index: int) -> Value:
        """Returns a required input by index.

        Raises:
            PassError: The input is absent.
        """
        value = self.input(index)
        if value is None:
            raise PassError(f"{self.op.name} '{self.name}' lacks input {index}")
        return value

    @overload
    def op_as(self, kind: type[OpT]) -> OpT: ...

    @overload
    def op_as(self, kind: type[OpT], other: type[OtherOpT]) -> OpT | OtherOpT: ...

    def op_as(self, kind: type[IrOp], other: type[IrOp] | None = None) -> IrOp:
        """Returns the op of the node, typed as an instance of a class.

        Args:
            kind: Expected class of the op.
            other: Another class that the op may have; None for no other.

        Raises:
            PassError: The op is of neither class.
        """
        op = self.op
        if not isinstance(op, kind if other is None else (kind, other)):
            raise PassError(f"{self!r} is no {kind.__name__}")
        return op

    @property
    def input_types(self) -> list[TensorType | None]:
        return [None if v is None else v.type for v in self.inputs]

    def __repr__(self) -> str:
        return f"{self.op.name} '{self.name}'"


@dataclass(eq=False)
class Graph:
    """A computation from `inputs` to `outputs`.

    Attributes:
        name: Name of the graph.
        inputs: Input values.
        outputs: Output values.
        nodes: Nodes in topological order.
        output_names: Names of the outputs that the user sees, in order; passes do not change them.
        properties: `metadata_props` of the ONNX file, by key.
        data_files: Files beside the model's own from which it was read.
        defaults: Inputs with default values, which are constants in this graph. None if there are
            no such inputs; copies of a graph always have None.
    """

    name: str
    inputs: list[Value]
    outputs: list[Value]
    nodes: list[Node] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    properties: Mapping[str, str] = field(default_factory=dict)
    defaults: Defaults | None = None
    data_files: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        self.output_names = self.output_names or [v.name for v in self.outputs]

    def values(self) -> Iterator[Value]:
        """Yields every value once: inputs, constants and node outputs."""
        seen: set[Value] = set()
        for value in self._mentioned():
            if value not in seen:
                seen.add(value)
                yield value

    def constants(self) -> Iterator[Value]:
        """Yields the constants that nodes or graph outputs use, each once."""
        return (v for v in self.values() if v.is_constant)

    def names(self) -> set[str]:
        """Returns the names of all nodes and values."""
        return {n.name for n in self.nodes} | {v.name for v in self.values()}

    def _mentioned(self) -> Iterator[Value]:
        """Yields graph inputs, node inputs and outputs, and graph outputs; a value once per use."""
        yield from self.inputs
        for node in self.nodes:
            yield from (v for v in node.inputs if v is not None)
            yield from node.outputs
        yield from self.outputs

    def users(self) -> dict[Value, list[Node]]:
        """Maps each value to the nodes that read it, each node once; unread values are left out."""
        users: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(v for v in node.inputs if v is not None):
                users.setdefault(value, []).append(node)
        return users

    def sort(self) -> None:
        """Sorts `nodes` topologically, keeping the current order where possible.

        Raises:
            PassError: The graph has a cycle.
        """
        members = set(self.nodes)
        state: dict[Node, bool] = {}
        order: list[Node] = []
        for root in self.nodes:
            if root in state:
                continue
            for value in root.inputs:
                producer = None if value is None else value.producer
                if producer is not None and producer not in state and producer in members:
                    break
            else:
                state[root] = True  # the common case: the order is nearly topological
                order.append(root)
                continue
            state[root] = False
            stack = [(root, iter(root.inputs))]
            while stack:
                node, pending = stack[-1]
                for value in pending:
                    producer = None if value is None else value.producer
                    if producer is None or producer not in members or state.get(producer):
                        continue
                    if producer in state:
                        raise PassError(f"graph '{self.name}' has a cycle at {producer}")
                    state[producer] = False
                    stack.append((producer, iter(producer.inputs)))
                    break
                else:
                    stack.pop()
                    if not state[node]:
                        state[node] = True
                        order.append(node)
        self.nodes = order

    def remove_dead(self) -> int:
        """Removes nodes that no graph output depends on; returns their number."""
        live: set[Node] = set()
        pending = [v.producer for v in self.outputs if v.producer is not None]
        while pending:
            node = pending.pop()
            if node not in live:
                live.add(node)
                pending += [v.producer for v in node.inputs if v is not None and v.producer]
        before = len(self.nodes)
        self.nodes = [n for n in self.nodes if n in live]
        return before - len(self.nodes)

    def bind(self, bindings: Substitutes) -> None:
        """Substitutes symbols in the types of all values of the graph, in place.

        Args:
            bindings: Number or dim by symbol.
        """
        for value in self.values() if bindings else ():
            value.type = value.type.bind(bindings)

    def copy(self, bindings: Substitutes | None = None) -> Graph:
        """Returns a copy of the graph with new nodes and values.

        Constants without symbols are shared, so that a weight is one `Value` in all copies.

        Args:
            bindings: Number or dim by symbol, to substitute; None to substitute none.
        """
        clones: dict[Value, Value] = {}

        def clone(value: Value) -> Value:
            if value.is_constant and value.has_numbers:
                return value
            if value not in clones:
                symbolic = value.shape if value.symbolic_shape is None else value.symbolic_shape
                type_ = value.type.bind(bindings or {})
                clones[value] = Value(value.name, type_, None, symbolic, value.aliases)
            return clones[value]

        inputs = [clone(v) for v in self.inputs]
        nodes = [
            Node(
                n.name,
                n.op,
                [None if v is None else clone(v) for v in n.inputs],
                [clone(v) for v in n.outputs],
                n.origins,
                n.made_by,
            )
            for n in self.nodes
        ]
        outputs = [clone(v) for v in self.outputs]
        names = list(self.output_names)
        return Graph(self.name, inputs, outputs, nodes, names, self.properties)

    def over(self, inputs: Sequence[Value | None], bindings: Substitutes | None = None) -> Graph:
        """Returns a copy of the graph that reads other values in place of the graph's inputs.

        Args:
            inputs: The values, one per input; None for an absent one.
            bindings: Number or dim by symbol, to substitute; None to substitute none.
        """
        copy = self.copy(bindings)
        copy.replace_inputs(dict(zip(copy.inputs, inputs, strict=True)))
        return copy

    def replace_inputs(self, replacements: Mapping[Value, Value | None]) -> None:
        """Replaces some graph inputs by other values, in place; they are no longer inputs.

        Args:
            replacements: New value by input; None for an absent one.
        """
        for node in self.nodes:
            node.inputs = [None if v is None else replacements.get(v, v) for v in node.inputs]
        self.inputs = [v for v in self.inputs if v not in replacements]
        self.outputs = [replacements.get(v) or v for v in self.outputs]


@dataclass
class Patch:
    """A change to a graph: nodes to add, and values to replace.

    Attributes:
        replace: New value by old value. Dtypes must be equal, and no dims provably different.
        nodes: New nodes in topological order.
        typed: New nodes whose output types were inferred by their op, so need no check.
    """

    replace: dict[Value, Value]
    nodes: list[Node] = field(default_factory=list)
    typed: frozenset[Node] = frozenset()


class Names:
    """Generates unique names.

    Args:
        taken: Names in use.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._used = dict.fromkeys(taken)
        # Prefix -> number below which all its names are used. It keeps the total time linear even
        # if a file uses such names for all its nodes.
        self._counts: dict[str, int] = {}

    def reserve(self, name: str) -> None:
        """Marks a name as used, so that it is not generated."""
        self._used[name] = None

    def __len__(self) -> int:
        """Number of used names."""
        return len(self._used)

    def shrink(self, count: int) -> None:
        """Marks names as unused, the latest ones first, until `count` used names are left."""
        while len(self._used) > count:
            self._used.popitem()
        self._counts.clear()

    def unique(self, name: str, joint: str = ".") -> str:
        """Returns an unused name and marks it as used.

        The result is `name` if it is unused, else `name`, `joint` and a number.
        """
        if name in self._used:
            return self._numbered(f"{name}{joint}", 1)
        self.reserve(name)
        return name

    def fresh(self, origin: str, suffix: str) -> str:
        """Returns the unused name `<origin>/<suffix>.<k>` with the smallest k; marks it as used."""
        return self._numbered(f"{origin}/{suffix}.", 0)

    def _numbered(self, head: str, start: int) -> str:
        """Returns an unused name: `head` and the next free number, at least `start`."""
        number = self._counts.get(head, start)
        while (name := f"{head}{number}") in self._used:
            number += 1
        self._counts[head] = number + 1
        self.reserve(name)
        return name


@dataclass(frozen=True)
class Defaults:
    """Inputs of a model that have default values, and are constants in its graph.

    Attributes:
        names: Names of the inputs with default values, in file order.
        graph_with: Takes a set of these names; returns the graph, before any pass, with the named
            inputs as graph inputs instead of constants.
    """

    names: tuple[str, ...]
    graph_with: Callable[[frozenset[str]], Graph]


def all_graphs(graph: Graph) -> Iterator[Graph]:
    """Yields `graph` and, recursively, all subgraphs of its nodes."""
    yield graph
    for node in graph.nodes:
        for inner in node.op.graphs:
            yield from all_graphs(inner)

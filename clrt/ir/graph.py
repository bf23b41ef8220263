"""The graph: typed values, and nodes in topological order.

Nodes and values are compared by identity. Only the importer and the pass driver, by a `Patch`,
change a graph; everything else reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clrt.errors import PassError
from clrt.ir.dims import Shape, Substitutes
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, IrOp, TensorType


@dataclass(eq=False)
class Value:
    """A tensor in the graph: a graph input, a constant, or the output of one node.

    Attributes:
        name: Unique in the graph; ONNX names are kept.
        type: Dtype, shape and, for constants and shape arithmetic, the elements.
        producer: The node that computes it; None for inputs and constants.
        symbolic_shape: In a specialised graph, the shape before dims were bound.
        aliases: Names of the values whose place it took in passes: they had the same elements.
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
        """Whether the elements are known and no node is needed to compute them."""
        return self.producer is None and self.type.known_elements is not None

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape as numbers.

        Raises:
            PassError: The shape is not static.
        """
        shape = self.type.static_shape
        if shape is None:
            raise PassError(f"'{self.name}' has no static shape: {self.type}")
        return shape

    @property
    def nbytes(self) -> int:
        """What the elements take.

        Raises:
            PassError: The shape is not static.
        """
        return math.prod(self.dims) * self.dtype.itemsize

    @property
    def has_numbers(self) -> bool:
        """Whether the elements are known as numbers."""
        return self.type.has_numbers

    @property
    def numbers(self) -> Array | None:
        """The elements where they are known as numbers."""
        return self.type.numbers

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


@dataclass(eq=False)
class Node:
    """One operator applied to values.

    Attributes:
        origins: Names of the ONNX nodes it stands for.
        made_by: The pass that made it, empty for imported nodes.
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
        """The first output."""
        return self.outputs[0]

    def input(self, index: int) -> Value | None:
        """An input by position; None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def arg(self, index: int) -> Value:
        """An input that must be there."""
        value = self.input(index)
        if value is None:
            raise PassError(f"{self.op.name} '{self.name}' lacks input {index}")
        return value

    @property
    def input_types(self) -> list[TensorType | None]:
        return [None if v is None else v.type for v in self.inputs]

    def __repr__(self) -> str:
        return f"{self.op.name} '{self.name}'"


@dataclass(eq=False)
class Graph:
    """A computation from `inputs` to `outputs`.

    Attributes:
        nodes: In topological order.
        output_names: What the user calls the outputs; kept when a pass replaces their values.
        properties: The `metadata_props` of the ONNX file, as exporters write them.
        defaults: Inputs with a value by default, which is a constant here; None if there are none,
            and in copies.
    """

    name: str
    inputs: list[Value]
    outputs: list[Value]
    nodes: list[Node] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    properties: Mapping[str, str] = field(default_factory=dict)
    defaults: Defaults | None = None

    def __post_init__(self) -> None:
        self.output_names = self.output_names or [v.name for v in self.outputs]

    def values(self) -> Iterator[Value]:
        """Every value once: inputs, constants and node outputs."""
        seen: set[Value] = set()
        for value in self._mentioned():
            if value not in seen:
                seen.add(value)
                yield value

    def constants(self) -> Iterator[Value]:
        """Every constant that a node or the outputs use, once."""
        return (v for v in self.values() if v.is_constant)

    def names(self) -> set[str]:
        """The names of its nodes and values."""
        return {n.name for n in self.nodes} | {v.name for v in self.values()}

    def _mentioned(self) -> Iterator[Value]:
        yield from self.inputs
        for node in self.nodes:
            yield from (v for v in node.inputs if v is not None)
            yield from node.outputs
        yield from self.outputs

    def users(self) -> dict[Value, list[Node]]:
        """The nodes that read each value (once per reading node)."""
        users: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(v for v in node.inputs if v is not None):
                users.setdefault(value, []).append(node)
        return users

    def sort(self) -> None:
        """Puts `nodes` in topological order, keeping today's order where it can.

        Raises:
            PassError: The graph has a cycle.
        """
        members = set(self.nodes)
        state: dict[Node, bool] = {}
        order: list[Node] = []
        for root in self.nodes:
            if root in state:
                continue
            makers = (v.producer for v in root.inputs if v is not None)
            if all(m is None or m in state or m not in members for m in makers):
                state[root] = True  # as most are, where the order is nearly one
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
        """Drops nodes whose outputs nothing needs; returns how many."""
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
        """Puts numbers in the place of symbols, in the types of all values."""
        for value in self.values() if bindings else ():
            value.type = value.type.bind(bindings)

    def copy(self, bindings: Substitutes | None = None) -> Graph:
        """A graph of new nodes and values, with dims bound where given.

        Constants without symbols are shared, so that a weight is one `Value` in every copy.
        """
        made: dict[Value, Value] = {}

        def clone(value: Value) -> Value:
            if value.is_constant and value.has_numbers:
                return value
            if value not in made:
                symbolic = value.shape if value.symbolic_shape is None else value.symbolic_shape
                type_ = value.type.bind(bindings or {})
                made[value] = Value(value.name, type_, None, symbolic, value.aliases)
            return made[value]

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
        """A copy that reads other values in place of the inputs, with dims bound where given."""
        copy = self.copy(bindings)
        copy.replace_inputs(dict(zip(copy.inputs, inputs, strict=True)))
        return copy

    def replace_inputs(self, given: Mapping[Value, Value | None]) -> None:
        """Reads other values in the place of some inputs, which then are none any more."""
        for node in self.nodes:
            node.inputs = [None if v is None else given.get(v, v) for v in node.inputs]
        self.inputs = [v for v in self.inputs if v not in given]
        self.outputs = [given.get(v) or v for v in self.outputs]


@dataclass
class Patch:
    """A change to a graph: nodes to add, and values to take the place of others.

    Attributes:
        replace: Old value to new value; dtype and rank must agree.
        nodes: New nodes, in topological order.
        typed: Those of them whose types were inferred, and not told by whoever made them.
    """

    replace: dict[Value, Value]
    nodes: list[Node] = field(default_factory=list)
    typed: frozenset[Node] = frozenset()


class Names:
    """Names that are each handed out once, and none of those taken."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = dict.fromkeys(taken)
        # By head, the number up to which all names are taken: a file may give one to each node.
        self._counts: dict[str, int] = {}

    def reserve(self, name: str) -> None:
        """Takes a name out of those to be handed out."""
        self._taken[name] = None

    def __len__(self) -> int:
        """How many names are taken."""
        return len(self._taken)

    def shrink(self, count: int) -> None:
        """Takes back the names that were taken last, so that `count` are left."""
        while len(self._taken) > count:
            self._taken.popitem()
        self._counts.clear()

    def unique(self, name: str, joint: str = ".") -> str:
        """The name itself; where it is taken, with a number behind it."""
        if name in self._taken:
            return self._numbered(f"{name}{joint}", 1)
        self.reserve(name)
        return name

    def fresh(self, origin: str, suffix: str) -> str:
        """The name `<origin>/<suffix>.<k>` of the least k that is left."""
        return self._numbered(f"{origin}/{suffix}.", 0)

    def _numbered(self, head: str, start: int) -> str:
        number = self._counts.get(head, start)
        while (name := f"{head}{number}") in self._taken:
            number += 1
        self._counts[head] = number + 1
        self.reserve(name)
        return name


@dataclass(frozen=True)
class Defaults:
    """Inputs of a model with a value by default, which its graph has as constants.

    Attributes:
        names: Theirs, in the order of the file.
        graph_with: Returns the graph, before any pass, that has some of them as plain inputs.
    """

    names: tuple[str, ...]
    graph_with: Callable[[frozenset[str]], Graph]

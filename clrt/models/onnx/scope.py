"""What the importer knows while it walks the nodes of a graph or of a function's body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx

from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, TensorType

FunctionKey: TypeAlias = "tuple[str, str, str]"
Initializer: TypeAlias = "onnx.TensorProto | onnx.SparseTensorProto | Array"

# Stands for every value that an unsupported node would make.
UNSUPPORTED_VALUE = Value("?", TensorType(DType.FLOAT32, None))


@dataclass
class Scope:
    """The names that nodes see: those of a graph, or of one call of a function.

    Attributes:
        nodes: Where the nodes go: those of the graph.
        prefix: Goes in front of the names of the nodes and values.
        env: Values by the name they have here; None for an input that the call leaves out.
        results: The name in the graph of each output, by its name here.
        attrs: Attributes of the call.
        calls: The functions that are being inlined.
        initializers: Those of the graph, by name; read at their first use.
        declared: The types that the file gives to values of the graph.
        outer: The enclosing scope, of a subgraph.
        captures: The values of outer scopes that the subgraph reads, and its inputs for them.
        sizes: For each dim of these that is an expression outside, its symbol in the subgraph.
        own: The nodes are of a decomposition, which may use ops of the domain `clrt`.
    """

    nodes: list[Node]

    prefix: str
    opsets: Mapping[str, int]
    env: dict[str, Value | None]
    results: dict[str, str]
    attrs: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)
    calls: tuple[FunctionKey, ...] = ()
    initializers: Mapping[str, Initializer] = field(default_factory=dict)
    declared: Mapping[str, onnx.ValueInfoProto] = field(default_factory=dict)
    outer: Scope | None = None
    captures: dict[Value, Value] = field(default_factory=dict)
    sizes: dict[str, Dim] = field(default_factory=dict)
    own: bool = False

    def has(self, name: str) -> bool:
        """Returns whether a node may read that name."""
        here = name in self.env or name in self.initializers
        return here or (self.outer is not None and self.outer.has(name))

    def names(self) -> set[str]:
        """Returns every name that a node may read."""
        seen = {*self.env, *self.initializers}
        return seen if self.outer is None else seen | self.outer.names()


@dataclass
class NodeCall:
    """A node about to be imported.

    Attributes:
        attributes: Resolved: none refers to one of a function's call.
        outputs: Names of the outputs in the graph, "" if left out.
        formals: Names of the outputs in the scope, "" if left out.
        graphs: Subgraphs that are IR already, with their scopes.
    """

    op_type: str
    name: str
    domain: str
    opset: int
    inputs: list[Value | None]
    outputs: list[str]
    formals: Sequence[str]
    attributes: Sequence[onnx.AttributeProto] = ()
    overload: str = ""
    graphs: dict[str, tuple[Graph, Scope]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The node as messages name it."""
        return f"{self.op_type} '{self.name}'"

    @property
    def is_broken(self) -> bool:
        """Whether an input comes from an unsupported node."""
        return any(v is UNSUPPORTED_VALUE for v in self.inputs)

    @property
    def truth(self) -> bool | None:
        """The first input where it is a known condition."""
        condition = self.inputs[0] if self.inputs else None
        numbers = None if condition is None else condition.numbers
        return None if numbers is None else bool(numbers.all())

    def proto(self) -> onnx.NodeProto:
        """Returns the node as ONNX has it; inputs have made-up names."""
        inputs = ["" if v is None else f"x{k}" for k, v in enumerate(self.inputs)]
        node = onnx.NodeProto(op_type=self.op_type, domain=self.domain, input=inputs)
        node.output.extend(self.formals)
        node.attribute.extend(self.attributes)
        return node

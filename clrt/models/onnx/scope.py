"""The importer's state for the nodes of one graph or one function call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

import onnx

from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, TensorType
from clrt.util.fast_dataclass import dataclass

FunctionKey: TypeAlias = "tuple[str, str, str]"
Initializer: TypeAlias = "onnx.TensorProto | onnx.SparseTensorProto | Array"

# Placeholder for the outputs of unsupported nodes.
UNSUPPORTED_VALUE = Value("?", TensorType(DType.FLOAT32, None))


@dataclass
class Scope:
    """The names visible to the nodes of a graph, or of a function body in one call.

    Attributes:
        nodes: Nodes of the IR graph; imported nodes are appended.
        prefix: Prefix of the names of nodes and values.
        opsets: Opset version by domain.
        env: Values by their name in this scope; None for a function input that the call omits.
        results: Name that an output gets in the IR graph, by its name in this scope.
        attrs: Attributes of the node that calls the function, and the function's defaults, by name.
        calls: Functions that are being inlined, outermost first.
        initializers: Initializers of the graph by name; read on first use.
        declared: Types that the file declares for values of the graph.
        outer: The enclosing scope of a subgraph; None for the main graph.
        captures: For each value of an outer scope that the subgraph reads, the input of the
            subgraph that stands for it.
        sizes: For each expression among the dims of these outer values, as text, the symbol that
            stands for it in the subgraph.
        allows_clrt_ops: Whether the nodes are of a decomposition, which may use ops of the domain
            `clrt`.
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
    allows_clrt_ops: bool = False

    def has(self, name: str) -> bool:
        """Returns whether a value name is visible, in this scope or an outer one."""
        here = name in self.env or name in self.initializers
        return here or (self.outer is not None and self.outer.has(name))

    def names(self) -> set[str]:
        """Returns the names of all visible values, also in outer scopes."""
        seen = {*self.env, *self.initializers}
        return seen if self.outer is None else seen | self.outer.names()


@dataclass
class NodeCall:
    """A node about to be imported.

    Attributes:
        op_type: Name of the op, or of the function that the node calls.
        name: Name of the node in the IR graph.
        domain: Domain of the op; "" for ai.onnx.
        opset: Opset version of the domain.
        inputs: Inputs; None for omitted ones.
        outputs: Names of the outputs in the IR graph, "" for omitted ones.
        formals: Names of the outputs in the scope, "" for omitted ones.
        attributes: Attributes; those that refer to attributes of a function have their values.
        overload: Overload of the function that the node calls.
        graphs: Subgraphs that are imported already, with their scopes, by attribute name.
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
        """Op and name of the node, for messages: "Add 'sum'"."""
        return f"{self.op_type} '{self.name}'"

    @property
    def is_broken(self) -> bool:
        """Whether an input is the placeholder for an output of an unsupported node."""
        return any(v is UNSUPPORTED_VALUE for v in self.inputs)

    @property
    def truth(self) -> bool | None:
        """Value of the first input, the condition of an If; None if it is not a constant."""
        condition = self.inputs[0] if self.inputs else None
        numbers = None if condition is None else condition.numbers
        return None if numbers is None else bool(numbers.all())

    def proto(self) -> onnx.NodeProto:
        """Returns the node as a NodeProto, with inputs named x0, x1, … ("" for omitted ones)."""
        inputs = ["" if v is None else f"x{k}" for k, v in enumerate(self.inputs)]
        node = onnx.NodeProto(op_type=self.op_type, domain=self.domain, input=inputs)
        node.output.extend(self.formals)
        node.attribute.extend(self.attributes)
        return node

"""What stands for an op of a file: clrt's own bodies, where ONNX has none, or one not used here.

A decomposition at import is a function under `@expands` that builds the nodes for one node of the
file, whose attributes and input types it sees. It adds ops by the names and attributes that they
have in ONNX's newest opset; the importer makes ops of the IR of them, and takes those apart that
have no class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.builder import Builder
from clrt.ir.dims import Shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Names, Value
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Decompose
from clrt.ops.control.control_flow import Scan
from clrt.ops.decompositions.registry import DecompositionStage, Results, register_decomposition
from clrt.util.host_limits import MAX_COUNT, text_array


@dataclass(frozen=True)
class BodyNode:
    """A node of a body, of the opsets that bodies are written in.

    Attributes:
        outputs: How many it has.
    """

    op_type: str
    domain: str
    inputs: Sequence[Value | None]
    outputs: int
    attrs: Mapping[str, Any]


class ImportsBodies(Protocol):
    """What the importer gives a body: the way from ONNX's ops to the IR's."""

    names: Names

    def add(self, node: BodyNode) -> list[Value]:
        """The outputs of a node."""

    def add_scan(
        self, node: BodyNode, types: Sequence[TensorType | None], step: Step
    ) -> list[Value]:
        """The outputs of a Scan.

        Args:
            types: Of the inputs of its graph; None for one that is not known.
            step: The outputs of its graph, from what adds nodes to it and its inputs.
        """


Step: TypeAlias = "Callable[[ImportsBodies, list[Value]], list[Value]]"


class ImportBuilder(Builder):
    """The builder of what stands for one node of a file.

    Attributes:
        op_type: Of the node.
        opset: Of the node's domain.
        output_count: How many outputs the node has.
        attrs: The attributes that the node has.
        inputs: Of the node; `has` says whether an optional one is there.
        outputs: For the decomposition to set; None for one that it does not have.
    """

    def __init__(
        self,
        title: str,
        op_type: str,
        opset: int,
        attrs: Mapping[str, Any],
        inputs: Sequence[Value | None],
        output_count: int,
        importer: ImportsBodies,
    ) -> None:
        super().__init__(importer.names, title)
        self.op_type = op_type
        self.opset = opset
        self.output_count = output_count
        self.attrs = attrs
        # An op that is given one left out says so.
        self.inputs = cast(list[Value], list(inputs))
        self.types = [None if v is None else v.type for v in inputs]
        self.outputs: Results = []
        self._importer = importer

    def __call__(self, op: str, *inputs: Value | None, domain: str = "", **attrs: Any) -> Value:
        """The one output of a new node."""
        return self.node(op, inputs, 1, domain, **attrs)[0]

    def node(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: int,
        domain: str = "",
        **attrs: Any,
    ) -> list[Value]:
        """The outputs of a new node."""
        return self._importer.add(BodyNode(op, domain, inputs, outputs, attrs))

    def scan(
        self,
        inputs: Sequence[Value],
        step: Callable[[ImportBuilder, list[Value]], list[Value]],
        outputs: int,
        **attrs: Any,
    ) -> list[Value]:
        """The outputs of a Scan.

        Args:
            inputs: The states, then what is scanned.
            step: The outputs of its graph, from a body in which to make them and the inputs there.
        """

        def inside(importer: ImportsBodies, formals: list[Value]) -> list[Value]:
            inner = ImportBuilder(
                self._origin, self.op_type, self.opset, {}, formals, outputs, importer
            )
            return step(inner, formals)

        types = Scan.subgraph_input_types([v.type for v in inputs])
        node = BodyNode("Scan", "", inputs, outputs, attrs)
        return self._importer.add_scan(node, types, inside)

    def scalar(self, value: int) -> Value:
        """An int64."""
        return self.numbers(value)

    def number(self, value: float, index: int = 0) -> Value:
        """A number of the dtype of an input."""
        return self.numbers(value, self.input_dtype(index))

    def labels(self, strings: str, ints: str) -> Array | None:
        """The names of the classes, or None."""
        if self.attrs.get(strings):
            return text_array(self.attrs[strings])
        found = self.attrs.get(ints)
        return np.asarray(found, np.int64) if found else None

    def floats(self, values: Any) -> Value:
        """A float32 constant."""
        return self.numbers(values, DType.FLOAT32)

    def cast(self, value: Value, dtype: DType) -> Value:
        """The value in a dtype."""
        return self("Cast", value, to=dtype.onnx)

    def has(self, index: int) -> bool:
        """Whether an optional input is there."""
        return index < len(self.types) and self.types[index] is not None

    def optional(self, index: int) -> Value | None:
        """An optional input; None where it is left out."""
        return self.inputs[index] if self.has(index) else None

    def input_type(self, index: int = 0) -> TensorType:
        """Type of an input.

        Raises:
            ModelError: It is left out.
        """
        found = self.types[index] if index < len(self.types) else None
        if found is None:
            raise ModelError(f"it lacks its input {index}; the model is not valid ONNX.")
        return found

    def input_dtype(self, index: int = 0) -> DType:
        """Dtype of an input.

        Raises:
            ModelError: It is left out.
        """
        return self.input_type(index).dtype

    def shape_of(self, index: int = 0) -> Shape:
        """Dims of an input.

        Raises:
            ModelError, UnsupportedError: It is left out, or its rank is not known.
        """
        shape = self.input_type(index).shape
        if shape is None:
            raise UnsupportedError(f"its input {index} has no known rank")
        return shape

    def rank_of(self, index: int = 0) -> int:
        """Rank of an input; raises what `shape_of` does."""
        return len(self.shape_of(index))

    def count_of(self, name: str, default: int | None = None, most: int = MAX_COUNT) -> int:
        """An integer attribute that says how many nodes or numbers the expansion makes.

        Raises:
            ModelError: It is missing, or outside 1..most.
        """
        count = self.attrs.get(name, default)
        if not isinstance(count, int) or not 1 <= count <= most:
            raise ModelError(f"its {name} is {count}; expected 1 to {most}.")
        return count

    def size_of(self, index: int, axis: int) -> int:
        """A dim of an input that must be a number.

        Raises:
            ModelError, UnsupportedError: The input is left out, or the dim is not known.
        """
        shape = self.shape_of(index)
        if not shape:
            raise ModelError(f"its input {index} is a scalar; expected axes.")
        dim = shape[axis % len(shape)]
        if not isinstance(dim, int):
            raise UnsupportedError(f"axis {axis} of input {index} depends on the input")
        return dim

    def array_of(self, index: int) -> Array:
        """Elements of an input that must be a constant.

        Raises:
            ModelError, UnsupportedError: The input is left out, or it is computed.
        """
        found = self.input_type(index).numbers
        if found is None:
            raise UnsupportedError(f"its input {index} is computed while the model runs")
        return found

    def plus(self, value: Value, index: int) -> Value:
        """The value plus an optional input."""
        return self("Add", value, self.inputs[index]) if self.has(index) else value

    def as_float32(self, index: int = 0) -> Value:
        """An input, cast where it has another dtype."""
        if self.input_dtype(index) is DType.FLOAT32:
            return self.inputs[index]
        return self.cast(self.inputs[index], DType.FLOAT32)

    def rows(self, value: Value, index: int = 0) -> Value:
        """An input of one axis as a matrix of one row; `value` stands for it."""
        found = self.types[index]
        if found is None or found.rank != 1:
            return value
        return self("Reshape", value, self.ints(1, -1))

    def real(self) -> tuple[Value, DType]:
        """The first input in the dtype to compute in: float64 as it is, others as float32."""
        if self.input_dtype() is DType.FLOAT64:
            return self.inputs[0], DType.FLOAT64
        return self.as_float32(), DType.FLOAT32

    def float32(self, value: Value, dtype: DType) -> Value:
        """A value of that dtype as float32."""
        return value if dtype is DType.FLOAT32 else self.cast(value, DType.FLOAT32)


Expansion = Callable[[ImportBuilder], None]


def register_import_decomposition(
    domain: str, *op_types: str, before: int | None = None
) -> Callable[[Expansion], Expansion]:
    """Decorator: the function is the decomposition of these ops at import.

    One that raises `Decompose` leaves this form of the op to the body in its ONNX schema.

    Args:
        before: At opsets below this one, and there also of ops that clrt has in a later form.
    """

    def add(expansion: Expansion) -> Expansion:
        def rule(_: object, body: ImportBuilder) -> Results | None:
            try:
                expansion(body)
            except Decompose:
                return None
            return body.outputs

        keys = [(domain, op_type) for op_type in op_types]
        register_decomposition(*keys, audience=DecompositionStage.IMPORT, before=before)(rule)
        return expansion

    return add

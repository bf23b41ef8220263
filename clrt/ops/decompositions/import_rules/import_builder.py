"""Builder of clrt's import decompositions, which replace nodes of a model file.

Import decompositions exist for ops whose ONNX function body is missing, wrong or slow. A rule is a
function under `@register_import_decomposition`. It builds the nodes that replace one node of the
file, from the node's attributes and input types, with ops of ONNX's newest opset. The importer
converts these ops to IR ops, and decomposes ops that have no class in the IR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.dims import Shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Names, Value
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Decompose
from clrt.ops.control.control_flow import Scan
from clrt.ops.decompositions.registry import DecompositionStage, Results, register_decomposition
from clrt.ops.op_builder import OpBuilder
from clrt.util.fast_dataclass import dataclass
from clrt.util.host_limits import MAX_COUNT, text_array


@dataclass(frozen=True)
class BodyNode:
    """A node that an import decomposition adds, with an op of its domain's newest opset.

    Attributes:
        op_type: Op name.
        domain: Op domain; "" for ai.onnx.
        inputs: Input values; None for an omitted one.
        outputs: Number of outputs.
        attrs: Attributes by name.
    """

    op_type: str
    domain: str
    inputs: Sequence[Value | None]
    outputs: int
    attrs: Mapping[str, Any]


class ImportsBodies(Protocol):
    """Interface to the importer, which converts the nodes of import decompositions to IR nodes.

    Attributes:
        names: Names in use in the graph.
    """

    names: Names

    def add(self, node: BodyNode) -> list[Value]:
        """Converts a node to IR and returns its outputs."""

    def add_scan(
        self, node: BodyNode, types: Sequence[TensorType | None], step: Step
    ) -> list[Value]:
        """Adds a Scan and returns its outputs.

        Args:
            node: The Scan, without its subgraph.
            types: Types of the subgraph's inputs; None for unknown ones.
            step: Builds the subgraph: returns its outputs from (importer of its nodes, its inputs).
        """


Step: TypeAlias = "Callable[[ImportsBodies, list[Value]], list[Value]]"


class ImportBuilder(OpBuilder):
    """Builds the nodes that replace one node of a model file.

    Ops are given by name, with the attributes of ONNX's newest opset. The importer converts them to
    IR ops, and decomposes ops that have no class in the IR.

    Attributes:
        op_type: Op name of the replaced node.
        opset: Opset version of the replaced node's domain.
        output_count: Number of outputs of the replaced node.
        attrs: Attributes that the file sets on the replaced node, by name.
        inputs: Inputs of the replaced node; None for an omitted one (see `has`).
        types: Types of these inputs; None for an omitted or unknown one.
        outputs: Values that replace the outputs of the node, set by the import decomposition; None
            for an unsupported output.
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
        # Ops report an omitted input that they need.
        self.inputs = cast(list[Value], list(inputs))
        self.types = [None if v is None else v.type for v in inputs]
        self.outputs: Results = []
        self._importer = importer

    def _add_named(
        self,
        op: str,
        domain: str,
        inputs: Sequence[Value | None],
        outputs: int,
        attrs: dict[str, Any],
    ) -> list[Value]:
        onnx = {k: v.onnx if isinstance(v, DType) else v for k, v in attrs.items()}
        return self._importer.add(BodyNode(op, domain, inputs, outputs, onnx))

    def scan(
        self,
        inputs: Sequence[Value],
        step: Callable[[ImportBuilder, list[Value]], list[Value]],
        outputs: int,
        **attrs: Any,
    ) -> list[Value]:
        """Adds a Scan and returns its outputs.

        Args:
            inputs: Initial states, then scanned tensors.
            step: Builds the subgraph: returns its outputs from (builder of its nodes, its inputs).
            outputs: Number of outputs of the Scan and of its subgraph.
            attrs: Attributes of the Scan.
        """

        def inside(importer: ImportsBodies, formals: list[Value]) -> list[Value]:
            inner = ImportBuilder(
                self._origin, self.op_type, self.opset, {}, formals, outputs, importer
            )
            return step(inner, formals)

        types = Scan.subgraph_input_types([v.type for v in inputs])
        node = BodyNode("Scan", "", inputs, outputs, attrs)
        return self._importer.add_scan(node, types, inside)

    def number(self, value: float, index: int = 0) -> Value:
        """Adds a scalar constant with the dtype of input `index`."""
        return self.numbers(value, self.input_dtype(index))

    def labels(self, strings: str, ints: str) -> Array | None:
        """Returns the class labels of a classifier, strings or int64.

        The labels are in one of two attributes. Returns None if neither attribute is set.

        Args:
            strings: Name of the attribute with string labels.
            ints: Name of the attribute with integer labels.
        """
        if self.attrs.get(strings):
            return text_array(self.attrs[strings])
        values = self.attrs.get(ints)
        return np.asarray(values, np.int64) if values else None

    def floats(self, values: Any) -> Value:
        """Adds a float32 constant with the elements `values`: a number or nested list."""
        return self.numbers(values, DType.FLOAT32)

    def has(self, index: int) -> bool:
        """Returns whether optional input `index` is present."""
        return index < len(self.types) and self.types[index] is not None

    def optional(self, index: int) -> Value | None:
        """Returns optional input `index`; None if it is omitted."""
        return self.inputs[index] if self.has(index) else None

    def input_type(self, index: int = 0) -> TensorType:
        """Returns the type of input `index`.

        Raises:
            ModelError: The input is omitted.
        """
        type_ = self.types[index] if index < len(self.types) else None
        if type_ is None:
            raise ModelError(f"it lacks its input {index}; the model is not valid ONNX.")
        return type_

    def input_dtype(self, index: int = 0) -> DType:
        """Returns the dtype of input `index`.

        Raises:
            ModelError: The input is omitted.
        """
        return self.input_type(index).dtype

    def shape_of(self, index: int = 0) -> Shape:
        """Returns the shape of input `index`.

        Raises:
            ModelError: The input is omitted.
            UnsupportedError: Its rank is unknown.
        """
        shape = self.input_type(index).shape
        if shape is None:
            raise UnsupportedError(f"its input {index} has no known rank")
        return shape

    def rank_of(self, index: int = 0) -> int:
        """Returns the rank of input `index`.

        Raises:
            ModelError: The input is omitted.
            UnsupportedError: Its rank is unknown.
        """
        return len(self.shape_of(index))

    def count_of(self, name: str, default: int | None = None, most: int = MAX_COUNT) -> int:
        """Returns an integer attribute that determines a number of nodes or elements to create.

        Args:
            name: Attribute name.
            default: Value if the attribute is absent; None if it is required.
            most: Maximum value.

        Raises:
            ModelError: The attribute is missing, or outside 1..most.
        """
        count = self.attrs.get(name, default)
        if not isinstance(count, int) or not 1 <= count <= most:
            raise ModelError(f"its {name} is {count}; expected 1 to {most}.")
        return count

    def size_of(self, index: int, axis: int) -> int:
        """Returns the size of an axis of input `index` as an int.

        Raises:
            ModelError: The input is omitted or a scalar.
            UnsupportedError: The dim is symbolic, or the rank unknown.
        """
        shape = self.shape_of(index)
        if not shape:
            raise ModelError(f"its input {index} is a scalar; expected axes.")
        dim = shape[axis % len(shape)]
        if not isinstance(dim, int):
            raise UnsupportedError(f"axis {axis} of input {index} depends on the input")
        return dim

    def array_of(self, index: int) -> Array:
        """Returns the elements of constant input `index`.

        Raises:
            ModelError: The input is omitted.
            UnsupportedError: The input is computed at run time.
        """
        array = self.input_type(index).numbers
        if array is None:
            raise UnsupportedError(f"its input {index} depends on run-time data")
        return array

    def plus(self, value: Value, index: int) -> Value:
        """Returns `value` plus optional input `index`; `value` itself if the input is omitted."""
        return self("Add", value, self.inputs[index]) if self.has(index) else value

    def as_float32(self, index: int = 0) -> Value:
        """Returns input `index` as float32: itself, or a cast of it.

        Raises:
            ModelError: The input is omitted.
        """
        self.input_type(index)
        return self.cast(self.inputs[index], DType.FLOAT32)

    def rows(self, value: Value, index: int = 0) -> Value:
        """Returns `value` reshaped to one row, `[1, elements]`, if input `index` is 1-D.

        Returns `value` itself if the input has another rank.
        """
        type_ = self.types[index]
        if type_ is None or type_.rank != 1:
            return value
        return self("Reshape", value, self.ints(1, -1))

    def real(self) -> tuple[Value, DType]:
        """Returns input 0 as float64 if it is float64, else as float32; and this dtype."""
        if self.input_dtype() is DType.FLOAT64:
            return self.inputs[0], DType.FLOAT64
        return self.as_float32(), DType.FLOAT32


Expansion = Callable[[ImportBuilder], None]


def register_import_decomposition(
    domain: str, *op_types: str, before: int | None = None
) -> Callable[[Expansion], Expansion]:
    """Returns a decorator that registers an import decomposition of ops.

    The decorated function sets `outputs` of its ImportBuilder. If it raises `Decompose`, the
    importer uses the function body in the op's ONNX schema instead.

    Args:
        domain: Domain of the ops; "" for ai.onnx.
        op_types: Names of the ops.
        before: Apply to opsets below this one only, and then even to ops with a class in the IR.
            None for all opsets, and only for ops without such a class.
    """

    def add(expansion: Expansion) -> Expansion:
        @wraps(expansion)
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

"""Bodies of ops that clrt runs as other ops: ONNX gives them none, or one that clrt does not use.

An expansion is a function under `@expands` that builds the body for one node, whose attributes and
input types it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from clrt.errors import ModelError, UnsupportedError
from clrt.importer.onnx_functions import Function
from clrt.ir.dims import Shape
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.limits import text_array

# What the bodies are written in; "clrt" has ops of its own for them.
_OPSETS = {"": 24, "ai.onnx.ml": 5, "com.microsoft": 1, "clrt": 1}


class Body:
    """A function body being built; values are names.

    Attributes:
        op_type: Of the node.
        opset: Of the node's domain.
        output_count: How many outputs the node has.
        attrs: The attributes that the node has.
        types: Of the inputs, None for one left out.
        inputs: Names of the inputs.
        outputs: Names of the outputs, for the expansion to set; "" for one that it does not have.
    """

    def __init__(
        self,
        op_type: str,
        opset: int,
        attrs: Mapping[str, Any],
        types: Sequence[TensorType | None],
        output_count: int,
    ) -> None:
        self.op_type = op_type
        self.opset = opset
        self.output_count = output_count
        self.attrs = attrs
        self.types = types
        self.inputs = [f"x{i}" for i in range(len(types))]
        self.outputs: list[str] = []
        self.nodes: list[onnx.NodeProto] = []

    def __call__(self, op: str, *inputs: str, domain: str = "", **attrs: Any) -> str:
        """Adds a node of one output and returns the name of that."""
        return self.node(op, inputs, 1, domain, **attrs)[0]

    def node(
        self, op: str, inputs: Sequence[str], outputs: int, domain: str = "", **attrs: Any
    ) -> list[str]:
        """Adds a node and returns the names of its outputs."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(onnx.helper.make_node(op, inputs, names, domain=domain, **attrs))
        return names

    def constant(self, array: Array) -> str:
        """Adds a constant."""
        array = array.astype(object) if array.dtype.kind == "U" else array
        return self("Constant", value=onnx.numpy_helper.from_array(array))

    def ints(self, *values: int) -> str:
        """Adds a list of int64."""
        return self.constant(np.array(values, np.int64))

    def scalar(self, value: int) -> str:
        """Adds an int64."""
        return self.constant(np.array(value, np.int64))

    def number(self, value: float, index: int = 0) -> str:
        """Adds a number of the dtype of an input."""
        return self.constant(np.array(value, self.input_dtype(index).numpy))

    def labels(self, strings: str, ints: str) -> Array | None:
        """The names of the classes, or None."""
        if self.attrs.get(strings):
            return text_array(self.attrs[strings])
        found = self.attrs.get(ints)
        return np.asarray(found, np.int64) if found else None

    def floats(self, values: Any) -> str:
        """Adds a float32 constant."""
        return self.constant(np.asarray(values, np.float32))

    def cast(self, value: str, dtype: DType) -> str:
        """Adds a Cast."""
        return self("Cast", value, to=dtype.onnx)

    def has(self, index: int) -> bool:
        """Whether an optional input is there."""
        return index < len(self.types) and self.types[index] is not None

    def optional(self, index: int) -> str:
        """The name of an optional input, "" where it is left out."""
        return self.inputs[index] if self.has(index) else ""

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

    def size_of(self, index: int, axis: int) -> int:
        """A dim of an input that must be a number.

        Raises:
            ModelError, UnsupportedError: The input is left out, or the dim is not known.
        """
        shape = self.shape_of(index)
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

    def plus(self, value: str, index: int) -> str:
        """The value plus an optional input."""
        return self("Add", value, self.inputs[index]) if self.has(index) else value

    def as_float32(self, index: int = 0) -> str:
        """An input, cast where it has another dtype."""
        if self.input_dtype(index) is DType.FLOAT32:
            return self.inputs[index]
        return self.cast(self.inputs[index], DType.FLOAT32)

    def rows(self, value: str, index: int = 0) -> str:
        """An input of one axis as a matrix of one row; `value` stands for it."""
        found = self.types[index]
        if found is None or found.rank != 1:
            return value
        return self("Reshape", value, self.ints(1, -1))

    def real(self) -> tuple[str, DType]:
        """The first input in the dtype to compute in: float64 as it is, others as float32."""
        if self.input_dtype() is DType.FLOAT64:
            return self.inputs[0], DType.FLOAT64
        return self.as_float32(), DType.FLOAT32

    def float32(self, value: str, dtype: DType) -> str:
        """A value of that dtype as float32."""
        return value if dtype is DType.FLOAT32 else self.cast(value, DType.FLOAT32)


Expansion = Callable[[Body], None]
_EXPANSIONS: dict[tuple[str, str], Expansion] = {}
_DATED: dict[tuple[str, str], tuple[int, Expansion]] = {}


def expands(
    domain: str, *op_types: str, before: int | None = None
) -> Callable[[Expansion], Expansion]:
    """Decorator: the function is the expansion of these ops.

    Args:
        before: At opsets below this one, and there also of ops that clrt has in a later form.
    """

    def add(expansion: Expansion) -> Expansion:
        for op_type in op_types:
            if before is None:
                _EXPANSIONS[domain, op_type] = expansion
            else:
                _DATED[domain, op_type] = before, expansion
        return expansion

    return add


def has_expansion(domain: str, op_type: str) -> bool:
    """Whether an op has an expansion at every opset."""
    return (domain, op_type) in _EXPANSIONS


def expanded_ops() -> set[tuple[str, str]]:
    """Domain and name of every op that has an expansion."""
    return {*_EXPANSIONS, *_DATED}


def is_dated(domain: str, op_type: str, opset: int) -> bool:
    """Whether an op has an expansion because of its opset."""
    before, _ = _DATED.get((domain, op_type), (0, None))
    return opset < before


def expand(
    domain: str,
    op_type: str,
    opset: int,
    attrs: Mapping[str, Any],
    types: Sequence[TensorType | None],
    output_count: int,
) -> Function:
    """The function that stands for one node; outputs that it lacks are "".

    Args:
        attrs: Python values of its attributes.
        types: Types of its inputs.

    Raises:
        UnsupportedError, ModelError: clrt does not have it in this form, or it is not valid.
        Others: What `Blaming` knows of.
    """
    dated = is_dated(domain, op_type, opset)
    expansion = _DATED[domain, op_type][1] if dated else _EXPANSIONS[domain, op_type]
    body = Body(op_type, opset, attrs, types, output_count)
    expansion(body)
    key = (domain, op_type, "clrt")
    lacking = [""] * (output_count - len(body.outputs))
    outputs = [*body.outputs, *lacking]
    return Function(key, body.inputs, outputs, body.nodes, _OPSETS, own=True)

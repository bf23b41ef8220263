"""Graph builder of language models: what encoders and decoders have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from clrt.errors import UnsupportedError
from clrt.ir.builder import Builder
from clrt.ir.dtypes import HALVES
from clrt.ir.graph import Value
from clrt.ir.op import Array, ConcatenatedRows, TensorType
from clrt.ops.base import Op
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.op_builder import OpBuilder
from clrt.ops.pointwise.activations import Swish
from clrt.ops.pointwise.table import Gelu, Mul, Relu, Tanh

# Activations by transformers' names; relu2 is the square of relu.
_ACTIVATIONS: dict[str, Op] = {
    "gelu": Gelu(),
    "gelu_python": Gelu(),
    "gelu_new": Gelu("tanh"),
    "gelu_fast": Gelu("tanh"),
    "gelu_pytorch_tanh": Gelu("tanh"),
    "gelu_python_tanh": Gelu("tanh"),
    "relu": Relu(),
    "silu": Swish(),
    "swish": Swish(),
    "tanh": Tanh(),
}
_SQUARED_RELU = "relu2"


class TensorSource(Protocol):
    """Interface of the tensors of a model file.

    `load` raises ModelError if the tensor is missing or has another shape.
    """

    def __contains__(self, name: str) -> bool: ...

    def load(self, name: str, shape: tuple[Any, ...]) -> Array: ...


Source = TypeVar("Source", bound=TensorSource)


class ModelBuilder(Builder, Generic[Source]):
    """A graph builder whose nodes are named after layers, and whose constants after tensors.

    Attributes:
        source: Source of the weights.
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self._weights: dict[str, Value] = {}
        self._ops = OpBuilder(self.names, nodes=self.nodes)
        self._layers: dict[str, OpBuilder] = {}

    def at(self, layer: str) -> OpBuilder:
        """Returns a builder of nodes named `/<layer>/<op>` in the same graph."""
        if layer not in self._layers:
            self._layers[layer] = self._ops.under(f"/{layer}")
        return self._layers[layer]

    def __call__(self, layer: str, op: Op, *inputs: Value | None) -> Value:
        """Adds a node named `/<layer>/<op>` and returns its first output."""
        return self.all(layer, op, *inputs)[0]

    def all(self, layer: str, op: Op, *inputs: Value | None) -> list[Value]:
        """Adds a node named `/<layer>/<op>` and returns all its outputs."""
        return self.at(layer).add_all(op, *inputs)

    def weight(self, name: str, *shape: int | None) -> Value:
        """Returns a tensor of the source as a constant, which is created on the first call.

        Args:
            name: Name of the tensor and of the constant.
            shape: Required shape; None for any size of an axis, if the source supports it.

        Raises:
            ModelError: The tensor is missing, or does not have this shape.
        """
        return self.named_constant(name, lambda: self.source.load(name, shape))

    def named_constant(self, name: str, make: Callable[[], Array | ConcatenatedRows]) -> Value:
        """Returns the constant `name`; the first call for a name gets its elements from `make`."""
        if name not in self._weights:
            self.names.reserve(name)
            self._weights[name] = Value(name, TensorType.of(make()))
        return self._weights[name]

    def product(self, x: Value, matrix: Value, layer: str) -> Value:
        """Returns x times the transpose of a matrix.

        If the matrix is float16 or bfloat16, x is rounded to this dtype.

        Args:
            matrix: Constant, `[outputs, inputs]`.
            layer: Prefix of the node's name.
        """
        a_dtype = matrix.dtype if matrix.dtype in HALVES else None
        return self(layer, FusedMatMul(trans_b=1, a_dtype=a_dtype), x, matrix)

    def activation(self, x: Value, name: str, layer: str) -> Value:
        """Applies an activation to x.

        Args:
            name: Name of the activation in transformers: "gelu_new".
            layer: Prefix of the node's name.

        Raises:
            UnsupportedError: The activation is unknown.
        """
        if name == _SQUARED_RELU:  # So et al., Primer (2021)
            x = self(layer, Relu(), x)
            return self(layer, Mul(), x, x)
        if name in _ACTIVATIONS:
            return self(layer, _ACTIVATIONS[name], x)
        known = ", ".join([*_ACTIVATIONS, _SQUARED_RELU])
        raise UnsupportedError(
            f"Activation {name!r} is not supported ({known} are); export the model to ONNX, an "
            "encoder to onnx/model.onnx in its folder."
        )

"""Builds the layers of encoders with the weights of a checkpoint."""

from __future__ import annotations

from typing import Literal

from clrt.errors import UnsupportedError
from clrt.ir.builder import Builder
from clrt.ir.graph import Value
from clrt.ir.op import TensorType
from clrt.models.huggingface.checkpoint import Checkpoint
from clrt.ops.base import Op
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.transpose import Transpose
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.ops.pointwise.table import Add, Gelu, Mul, Relu, Sigmoid, Tanh

# Variant of Gelu by transformers' name.
_GELUS: dict[str, Literal["none", "tanh"]] = {
    "gelu": "none",
    "gelu_python": "none",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_python_tanh": "tanh",
}
_PLAIN: dict[str, Op] = {"relu": Relu(), "tanh": Tanh()}
_SILU = ("silu", "swish")


class LayerBuilder(Builder):
    """A graph builder for encoders, whose nodes are named after their layer in the checkpoint.

    Attributes:
        checkpoint: Source of the weights, which are views of its mapped files.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self._weights: dict[str, Value] = {}
        self._transposed: dict[Value, Value] = {}

    def __call__(self, layer: str, op: Op, *inputs: Value) -> Value:
        """Adds a node named `/<layer>/<op>.<k>` and returns its output."""
        return Builder(self.names, f"/{layer}", nodes=self.nodes).add(op, *inputs)

    def weight(self, name: str, *shape: int | None) -> Value:
        """Returns tensor `name` of the checkpoint as a float32 constant, created on the first call.

        Args:
            shape: The required shape; None allows any size of an axis.

        Raises:
            ModelError: The tensor is missing or has another shape.
            UnsupportedError: The tensor's dtype is not a float type.
        """
        if name not in self._weights:
            self.names.reserve(name)
            array = self.checkpoint.load(name, shape)
            self._weights[name] = Value(name, TensorType.of(array))
        return self._weights[name]

    def first_present(self, *names: str) -> str:
        """Returns the first of `names` that the checkpoint has a tensor for; names[0] if none."""
        return next((name for name in names if name in self.checkpoint), names[0])

    def linear(self, x: Value, path: str, inputs: int, outputs: int | None) -> Value:
        """Adds torch's Linear with the tensors at `path`: x @ weight.T + bias.

        Args:
            path: The tensors' name without ".weight" and ".bias".
            inputs: Columns of x.
            outputs: Columns of the result; None for any number.
        """
        return self.dense(x, f"{path}.weight", f"{path}.bias", inputs, outputs)

    def dense(self, x: Value, weight: str, bias: str, inputs: int, outputs: int | None) -> Value:
        """Adds x @ weight.T + bias; a weight that layers share is transposed once.

        Args:
            weight, bias: Names of tensors in the checkpoint.
            inputs: Columns of x.
            outputs: Columns of the result; None for any number.
        """
        layer = bias.removesuffix(".bias")
        matrix = self.weight(weight, outputs, inputs)
        if matrix not in self._transposed:
            self._transposed[matrix] = self(layer, Transpose((1, 0)), matrix)
        product = self(layer, MatMul(), x, self._transposed[matrix])
        return self(layer, Add(), product, self.weight(bias, matrix.dims[0]))

    def layer_norm(self, x: Value, path: str, size: int, epsilon: float) -> Value:
        """Applies the layer normalisation at `path` to x, which has `size` columns.

        Scale and bias may also be named "gamma" and "beta", as in old checkpoints.
        """
        scale = self.weight(self.first_present(f"{path}.weight", f"{path}.gamma"), size)
        bias = self.weight(self.first_present(f"{path}.bias", f"{path}.beta"), size)
        return self(path, LayerNormalization(epsilon=epsilon), x, scale, bias)

    def activation(self, x: Value, kind: str, layer: str) -> Value:
        """Applies an activation to x.

        Args:
            kind: Name of the activation in transformers: "gelu_new".
            layer: Prefix of the node's name.

        Raises:
            UnsupportedError: The activation is unknown.
        """
        if kind in _GELUS:
            return self(layer, Gelu(_GELUS[kind]), x)
        if kind in _PLAIN:
            return self(layer, _PLAIN[kind], x)
        if kind in _SILU:
            return self(layer, Mul(), x, self(layer, Sigmoid(), x))
        known = ", ".join([*_GELUS, *_PLAIN, *_SILU])
        raise UnsupportedError(
            f"Activation {kind!r} in config.json is not supported ({known} are); "
            "export the model to ONNX and put it in onnx/model.onnx."
        )

    def first_token(self, x: Value, layer: str) -> Value:
        """Adds x[:, 0]: the vector of each sequence's first token."""
        return self(layer, Gather(axis=1), x, self.numbers(0))

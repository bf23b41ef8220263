"""Builds the layers of encoders with the weights of a checkpoint."""

from __future__ import annotations

from clrt.ir.graph import Value
from clrt.models.huggingface.checkpoint import Checkpoint
from clrt.models.model_builder import ModelBuilder
from clrt.ops.movement.gather import Gather
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.ops.pointwise.table import Add


class EncoderBuilder(ModelBuilder[Checkpoint]):
    """A graph builder for encoders; nodes have the names of layers in the checkpoint."""

    def first_present(self, *names: str) -> str:
        """Returns the first of `names` that the checkpoint has a tensor for; names[0] if none."""
        return next((name for name in names if name in self.source), names[0])

    def linear(self, x: Value, path: str, inputs: int, outputs: int | None) -> Value:
        """Adds torch's Linear with the tensors at `path`: x @ weight.T + bias.

        Args:
            path: The tensors' name without ".weight" and ".bias".
            inputs: Columns of x.
            outputs: Columns of the result; None for any number.
        """
        return self.dense(x, f"{path}.weight", f"{path}.bias", inputs, outputs)

    def dense(self, x: Value, weight: str, bias: str, inputs: int, outputs: int | None) -> Value:
        """Adds x @ weight.T + bias.

        Args:
            weight: Name of the weight in the checkpoint.
            bias: Name of the bias in the checkpoint.
            inputs: Columns of x.
            outputs: Columns of the result; None for any number.
        """
        layer = bias.removesuffix(".bias")
        matrix = self.weight(weight, outputs, inputs)
        product = self.product(x, matrix, layer)
        return self(layer, Add(), product, self.weight(bias, matrix.dims[0]))

    def layer_norm(self, x: Value, path: str, size: int, epsilon: float) -> Value:
        """Applies the layer normalisation at `path` to x, which has `size` columns.

        Scale and bias may also be named "gamma" and "beta", as in old checkpoints.
        """
        scale = self.weight(self.first_present(f"{path}.weight", f"{path}.gamma"), size)
        bias = self.weight(self.first_present(f"{path}.bias", f"{path}.beta"), size)
        return self(path, LayerNormalization(epsilon=epsilon), x, scale, bias)

    def first_token(self, x: Value, layer: str) -> Value:
        """Returns x[:, 0], each sequence's first token, by a node named after `layer`."""
        return self(layer, Gather(axis=1), x, self.numbers(0))

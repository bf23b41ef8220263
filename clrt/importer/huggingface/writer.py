"""Writes ONNX nodes whose weights stay in the checkpoint."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from clrt.errors import UnsupportedError
from clrt.importer.huggingface.checkpoint import Checkpoint

#: The Gelu variant behind each of transformers' names for it.
_GELUS = {
    "gelu": "none",
    "gelu_python": "none",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_python_tanh": "tanh",
}
_PLAIN = {"relu": "Relu", "tanh": "Tanh"}
_SILU = ("silu", "swish")


class GraphWriter:
    """Collects nodes, small constants and the weights they name.

    Attributes:
        checkpoint: Where weights come from.
        nodes: The nodes in order of evaluation.
        constants: Small initializers: shapes, scalars, tables.
        weights: The weights used so far, by their names in the checkpoint.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.weights: dict[str, NDArray[np.float32]] = {}
        self._transposed: dict[str, str] = {}
        self._names: Counter[str] = Counter()

    def node(self, op: str, inputs: list[str], scope: str, **attributes: Any) -> str:
        """Adds a node with one output and returns that output's name."""
        name = f"/{scope}/{op}"
        self._names[name] += 1
        if self._names[name] > 1:
            name = f"{name}_{self._names[name]}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: Any, dtype: type[np.generic] = np.int64) -> str:
        """Adds a small initializer, once for each name, and returns its full name."""
        name = f"/const/{name}"
        if self._names[name] == 0:
            self._names[name] += 1
            self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, name: str, shape: tuple[int | None, ...]) -> str:
        """Declares a weight of the checkpoint as used and returns its name."""
        if name not in self.weights:
            self.weights[name] = self.checkpoint.load(name, shape)
        return name

    def first_present(self, *names: str) -> str:
        """Returns the first name that the checkpoint has, or the first of all if it has none."""
        return next((name for name in names if name in self.checkpoint), names[0])

    def rename(self, value: str, name: str) -> None:
        """Gives a value another name wherever it occurs."""
        for node in self.nodes:
            for names in (node.input, node.output):
                for index, old in enumerate(names):
                    if old == value:
                        names[index] = name

    def linear(self, x: str, path: str, inputs: int, outputs: int | None) -> str:
        """Adds torch's Linear at `path`: x @ weight.T + bias."""
        return self.dense(x, f"{path}.weight", f"{path}.bias", inputs, outputs)

    def dense(self, x: str, weight: str, bias: str, inputs: int, outputs: int | None) -> str:
        """Adds x @ weight.T + bias; the transpose of a shared weight is added once."""
        scope = bias.removesuffix(".bias")
        self.weight(weight, (outputs, inputs))
        if weight not in self._transposed:
            self._transposed[weight] = self.node("Transpose", [weight], scope, perm=[1, 0])
        product = self.node("MatMul", [x, self._transposed[weight]], scope)
        self.weight(bias, (self.weights[weight].shape[0],))
        return self.node("Add", [product, bias], scope)

    def layer_norm(self, x: str, path: str, size: int, epsilon: float) -> str:
        """Adds the layer normalisation at `path`; old files call its weights gamma and beta."""
        scale = self.first_present(f"{path}.weight", f"{path}.gamma")
        bias = self.first_present(f"{path}.bias", f"{path}.beta")
        inputs = [x, self.weight(scale, (size,)), self.weight(bias, (size,))]
        return self.node("LayerNormalization", inputs, path, axis=-1, epsilon=epsilon)

    def activation(self, x: str, kind: str, scope: str) -> str:
        """Adds the activation that transformers calls `kind`."""
        if kind in _GELUS:
            return self.node("Gelu", [x], scope, approximate=_GELUS[kind])
        if kind in _PLAIN:
            return self.node(_PLAIN[kind], [x], scope)
        if kind in _SILU:
            return self.node("Mul", [x, self.node("Sigmoid", [x], scope)], scope)
        known = ", ".join([*_GELUS, *_PLAIN, *_SILU])
        raise UnsupportedError(
            f"Activation {kind!r} in config.json is not supported ({known} are); "
            "export the model to ONNX and put it in onnx/model.onnx."
        )

    def first_token(self, x: str, scope: str) -> str:
        """Adds x[:, 0]."""
        return self.node("Gather", [x, self.constant("zero", 0)], scope, axis=1)

"""Modules of sentence-transformers that follow the pooling: Dense, LayerNorm, Normalize."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.models.huggingface.checkpoint import Checkpoint
from clrt.models.huggingface.json_values import positive_number
from clrt.models.huggingface.model_files import read_optional
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

# Lower bound of the norm that vectors are divided by; torch's `normalize`.
_MIN_NORM = 1e-12
_LAYER_NORM_EPSILON = 1e-5  # torch's default, which the module uses
# torch class of an activation -> ONNX op and its attributes.
_ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Tanh": ("Tanh", {}),
    "Identity": ("Identity", {}),
    "ReLU": ("Relu", {}),
    "Sigmoid": ("Sigmoid", {}),
    "GELU": ("Gelu", {}),
    "SiLU": ("Swish", {}),
    "ELU": ("Elu", {}),
    "LeakyReLU": ("LeakyRelu", {"alpha": 0.01}),
    "SELU": ("Selu", {}),
    "Softplus": ("Softplus", {}),
    "Softsign": ("Softsign", {}),
    "Mish": ("Mish", {}),
    "Hardswish": ("HardSwish", {}),
}
_SENTENCE = "sentence_embedding"
_TENSORS = {"Dense": ("linear.weight", "linear.bias", "residual.weight"),
            "LayerNorm": ("norm.weight", "norm.bias"), "Normalize": ()}  # fmt: skip


@dataclass(frozen=True, eq=False)
class VectorStage:
    """Module of sentence-transformers that transforms sentence vectors after pooling.

    Attributes:
        kind: "Dense", "LayerNorm" or "Normalize".
        activation: torch class of a Dense module's activation.
        residual: Whether a Dense module adds its input to its output, projected if sizes differ.
        tensors: float32 weights, by the names that torch gives them.
    """

    kind: str
    activation: str = "Identity"
    residual: bool = False
    tensors: Mapping[str, Array] = field(default_factory=dict)

    @property
    def width(self) -> int | None:
        """Output vector size; None if it equals the input size."""
        weight = self.tensors.get("linear.weight")
        return None if weight is None else weight.shape[0]

    def apply(self, build: OpBuilder, x: Value) -> Value:
        """Adds the module to a graph.

        Args:
            build: Builder of the graph.
            x: Vectors, [batch, size].

        Returns:
            Vectors, [batch, width], or [batch, size] if `width` is None.
        """
        if self.kind == "Normalize":
            return unit(build, x)
        if self.kind == "LayerNorm":
            scale, shift = self.tensors["norm.weight"], self.tensors["norm.bias"]
            return build("LayerNormalization", x, scale, shift, epsilon=_LAYER_NORM_EPSILON)
        y = build("MatMul", x, np.ascontiguousarray(self.tensors["linear.weight"].T))
        if "linear.bias" in self.tensors:
            y = build("Add", y, self.tensors["linear.bias"])
        op, attributes = _ACTIVATIONS[self.activation]
        y = y if op == "Identity" else build(op, y, **attributes)
        if not self.residual:
            return y
        more = self.tensors.get("residual.weight")
        return build("Add", y, x if more is None else build("MatMul", x, more.T.copy()))

    def stored(self) -> dict[str, Any]:
        """Returns all fields as JSON values, for a compiled model; weights are in base64."""
        tensors = {
            name: [list(array.shape), base64.b64encode(array.astype("<f4").tobytes()).decode()]
            for name, array in self.tensors.items()
        }
        return {"kind": self.kind, "activation": self.activation, "residual": self.residual,
                "tensors": tensors}  # fmt: skip


def unit(build: OpBuilder, vectors: Value) -> Value:
    """Adds ops that L2-normalize `vectors` along the last axis to a graph; zeros stay zero."""
    from clrt.ops.op_builder import floats, ints  # imported late: stored plans need no ops

    length = build("ReduceL2", vectors, ints(-1), keepdims=1)
    return build("Div", vectors, build("Max", length, floats(_MIN_NORM)))


def read_stages(root: Path, listed: Sequence[tuple[str, str]]) -> tuple[VectorStage, ...]:
    """Reads the modules of a model folder that follow the pooling.

    Args:
        root: The model folder.
        listed: (module class, folder below `root`) of each module; Dropout is skipped.

    Raises:
        ModelError: A file or tensor is missing or damaged.
        UnsupportedError: A module has an option that clrt lacks.
    """
    return tuple(
        _read_stage(kind, root / path if path else root)
        for kind, path in listed
        if kind != "Dropout"
    )


def stages_of(stored: object) -> tuple[VectorStage, ...] | None:
    """Converts `VectorStage.stored` values, read from a compiled model, back to stages.

    Returns:
        The stages; None if the values are damaged.
    """
    if not isinstance(stored, list):
        return None
    stages = [_stage_of(each) for each in stored]
    return None if None in stages else tuple(s for s in stages if s is not None)


def _read_stage(kind: str, folder: Path) -> VectorStage:
    config = read_optional(folder / "config.json")
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, _SENTENCE):
            raise UnsupportedError(
                f"The {kind} of '{folder}' has the {key} {config[key]!r:.80}; clrt supports only "
                f"{_SENTENCE}.",
                [kind],
            )
    if kind == "Normalize":
        return VectorStage(kind)
    checkpoint = Checkpoint(folder)
    if kind == "LayerNorm":
        size = _size(folder, config, "dimension")
        names = ("norm.weight", "norm.bias")
        return VectorStage(kind, tensors={n: checkpoint.load(n, (size,)) for n in names})
    inputs, outputs = (_size(folder, config, k) for k in ("in_features", "out_features"))
    residual, bias = config.get("use_residual", False) is True, config.get("bias", True) is True
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (outputs, inputs)}
    shapes |= {"linear.bias": (outputs,)} if bias else {}
    shapes |= {"residual.weight": (outputs, inputs)} if residual and inputs != outputs else {}
    tensors = {name: checkpoint.load(name, shape) for name, shape in shapes.items()}
    return VectorStage(kind, _activation(folder, config), residual, tensors)


def _activation(folder: Path, config: Mapping[str, Any]) -> str:
    """Returns the torch class name, such as "Tanh", of the activation of a Dense module.

    Dense is a module of sentence-transformers: a linear layer and an activation.

    Args:
        folder: Folder of the module, for the message.
        config: Contents of its config.json.

    Raises:
        UnsupportedError: The activation is not a known class of torch.nn.
    """
    said = str(config.get("activation_function") or "torch.nn.modules.activation.Tanh")
    name = said.rpartition(".")[2]
    if not said.startswith("torch.nn.") or name not in _ACTIVATIONS:
        raise UnsupportedError(
            f"The Dense of '{folder}' has the activation {said!r:.120}; clrt supports "
            f"{', '.join(_ACTIVATIONS)} of torch.nn.",
            ["Dense"],
        )
    return name


def _size(folder: Path, config: Mapping[str, Any], key: str) -> int:
    size = positive_number(config.get(key))
    if size is None:
        raise ModelError(
            f"'{folder / 'config.json'}' has {key} {config.get(key)!r:.80}; expected a number "
            "above 0; download the model's own file."
        )
    return size


def _stage_of(value: object) -> VectorStage | None:
    if not isinstance(value, dict) or value.keys() != {"kind", "activation", "residual", "tensors"}:
        return None
    kind, activation, residual = value["kind"], value["activation"], value["residual"]
    known = isinstance(kind, str) and kind in _TENSORS and isinstance(value["tensors"], dict)
    if not known or activation not in _ACTIVATIONS or not isinstance(residual, bool):
        return None
    tensors = {name: _tensor_of(each) for name, each in value["tensors"].items()}
    valid = {n: t for n, t in tensors.items() if t is not None and n in _TENSORS[kind]}
    needed = {n for n in _TENSORS[kind] if n not in ("linear.bias", "residual.weight")}
    if len(valid) < len(tensors) or needed - valid.keys():
        return None
    return VectorStage(kind, activation, residual, valid)


def _tensor_of(value: object) -> Array | None:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], list):
        return None
    shape, text = value
    if not all(type(n) is int and 0 < n < 1 << 24 for n in shape) or not isinstance(text, str):
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(raw) != 4 * prod(shape):
        return None
    return np.frombuffer(raw, "<f4").astype(np.float32).reshape(shape)

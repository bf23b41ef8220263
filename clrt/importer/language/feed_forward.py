"""The feed-forward network of a decoder's layer."""

from __future__ import annotations

from clrt.errors import UnsupportedError
from clrt.importer.language.layers import LayerBuilder
from clrt.ir.graph import Value
from clrt.ops.base import Op
from clrt.ops.pointwise.activations import Swish
from clrt.ops.pointwise.pointwise import Gelu, Mul, Relu

_ACTIVATIONS: dict[str, Op] = {
    "silu": Swish(),
    "swish": Swish(),
    "relu": Relu(),
    "gelu": Gelu(),
    "gelu_new": Gelu("tanh"),
    "gelu_fast": Gelu("tanh"),
    "gelu_pytorch_tanh": Gelu("tanh"),
}


def feed_forward(build: LayerBuilder, x: Value, path: str) -> Value:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))).

    Raises:
        UnsupportedError: The activation is not known.
    """
    decoder = build.decoder
    size, wide = decoder.hidden, decoder.intermediate
    activation = _activation(decoder.activation)
    if decoder.gated:
        gate, up = build.halves(
            x, f"{path}.ffn_gate_up", f"{path}.ffn_gate", f"{path}.ffn_up", wide
        )
        inner = build(path, Mul(), build(path, activation, gate), up)
    else:
        inner = build(path, activation, build.linear(x, f"{path}.ffn_up", size, wide))
    return build.linear(inner, f"{path}.ffn_down", wide, size)


def _activation(name: str) -> Op:
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise UnsupportedError(f"Activation {name!r} is not supported; those known are {known}.")
    return _ACTIVATIONS[name]

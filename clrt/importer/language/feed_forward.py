"""The feed-forward network of a decoder's layer, or the mixture of experts in its place."""

from __future__ import annotations

from clrt.errors import UnsupportedError
from clrt.importer.language.decoder import Experts
from clrt.importer.language.layers import DecoderBuilder
from clrt.ir.graph import Value
from clrt.ops.base import Op
from clrt.ops.matmul.routed_matmul import RoutedMatMul
from clrt.ops.movement.views import Reshape
from clrt.ops.norm.softmax import Softmax
from clrt.ops.pointwise.activations import Swish
from clrt.ops.pointwise.pointwise import Add, Div, Gelu, Mul, Relu, Sigmoid
from clrt.ops.reduce.reduce import ReduceSum
from clrt.ops.reduce.top_k import TopK

_ACTIVATIONS: dict[str, Op] = {
    "silu": Swish(),
    "swish": Swish(),
    "relu": Relu(),
    "gelu": Gelu(),
    "gelu_new": Gelu("tanh"),
    "gelu_fast": Gelu("tanh"),
    "gelu_pytorch_tanh": Gelu("tanh"),
}


def feed_forward(build: DecoderBuilder, x: Value, path: str) -> Value:
    """What the second part of a layer makes of its input.

    Raises:
        UnsupportedError: The activation is not known.
    """
    experts = build.decoder.experts
    if experts is None or f"{path}.ffn_gate_inp.weight" not in build.source:
        return _dense(build, x, path, build.decoder.intermediate)
    mixed = _mixture(build, x, path, experts)
    if not experts.shared:
        return mixed
    shared = _dense(build, x, path, experts.shared, "_shexp")
    gate = build.linear(x, f"{path}.ffn_gate_inp_shexp", build.decoder.hidden, 1)
    shared = build(path, Mul(), shared, build(path, Sigmoid(), gate))
    return build(path, Add(), mixed, shared)


def _dense(build: DecoderBuilder, x: Value, path: str, wide: int, kind: str = "") -> Value:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))).

    Args:
        wide: The width of the network.
        kind: Follows the names of its tensors.
    """
    size, activation = build.decoder.hidden, _activation(build.decoder.activation)
    gate_path, up_path = f"{path}.ffn_gate{kind}", f"{path}.ffn_up{kind}"
    if build.decoder.gated:
        gate, up = build.halves(x, f"{path}.ffn_gate_up{kind}", gate_path, up_path, wide)
        inner = build(path, Mul(), build(path, activation, gate), up)
    else:
        inner = build(path, activation, build.linear(x, up_path, size, wide))
    return build.linear(inner, f"{path}.ffn_down{kind}", wide, size)


def _mixture(build: DecoderBuilder, x: Value, path: str, experts: Experts) -> Value:
    """The weighted sum of what the experts that each token goes to make of it.

    Source: Jiang et al., Mixtral of Experts (2024).
    """
    size, count, used = build.decoder.hidden, experts.count, experts.used
    logits = build.linear(x, f"{path}.ffn_gate_inp", size, count)
    shares = build(path, Softmax(axis=1), logits)
    best, chosen = build.all(path, TopK(axis=1), shares, build.ints(used))
    if experts.normalised:
        best = build(path, Div(), best, build(path, ReduceSum(), best, build.ints(1)))

    def product(rows: Value, name: str, outputs: int, inputs: int, each: int) -> Value:
        weights = build.weight(f"{path}.{name}_exps.weight", count, outputs, inputs)
        return build(path, RoutedMatMul(each), rows, weights, chosen)

    gate = product(x, "ffn_gate", experts.size, size, used)
    up = product(x, "ffn_up", experts.size, size, used)
    inner = build(path, Mul(), build(path, _activation(build.decoder.activation), gate), up)
    made = product(inner, "ffn_down", size, experts.size, 1)
    made = build(path, Mul(), made, build(path, Reshape(), best, build.ints(-1, 1)))
    made = build(path, Reshape(), made, build.ints(-1, used, size))
    return build(path, ReduceSum(keepdims=False), made, build.ints(1))


def _activation(name: str) -> Op:
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise UnsupportedError(f"Activation {name!r} is not supported; those known are {known}.")
    return _ACTIVATIONS[name]

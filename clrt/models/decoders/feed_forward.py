"""The feed-forward network of a decoder layer, or the mixture of experts that replaces it."""

from __future__ import annotations

from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.models.decoders.decoder import MoeConfig
from clrt.models.decoders.layers import DecoderBuilder
from clrt.ops.matmul.routed_matmul import RoutedMatMul
from clrt.ops.movement.views import Reshape
from clrt.ops.norm.softmax import Softmax
from clrt.ops.pointwise.activations import Swish
from clrt.ops.pointwise.table import Add, Div, Mul, Sigmoid
from clrt.ops.reduce.reduce import ReduceSum
from clrt.ops.reduce.top_k import TopK

# alpha of Swish for gates with a limit (gpt-oss)
LIMITED_ALPHA = 1.702


def feed_forward(build: DecoderBuilder, x: Value, path: str) -> Value:
    """Adds a layer's feed-forward network, or its experts; returns the output `[tokens, hidden]`.

    A layer has experts if the model has them and the layer has a router.

    Args:
        x: `[tokens, hidden]`.
        path: The layer: "blk.N".

    Raises:
        UnsupportedError: The activation is unknown.
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
    """Adds down(activation(gate(x)) * up(x)), or down(activation(up(x))) if not gated.

    Args:
        x: `[tokens, hidden]`.
        path: The layer: "blk.N".
        wide: Intermediate size: outputs of the gate and up projections.
        kind: Suffix of the tensor names: "_shexp" for the shared expert.
    """
    size = build.decoder.hidden
    gate_path, up_path = f"{path}.ffn_gate{kind}", f"{path}.ffn_up{kind}"
    if build.decoder.gated:
        gate, up = build.linear_pair(x, f"{path}.ffn_gate_up{kind}", gate_path, up_path, wide)
        inner = _gated(build, gate, up, path)
    else:
        up = build.linear(x, up_path, size, wide)
        inner = build.activation(up, build.decoder.activation, path)
    return build.linear(inner, f"{path}.ffn_down{kind}", wide, size)


def _mixture(build: DecoderBuilder, x: Value, path: str, experts: MoeConfig) -> Value:
    """Adds a mixture of experts: the weighted sum of the outputs of each token's experts.

    Args:
        x: `[tokens, hidden]`.
        path: The layer: "blk.N".
        experts: Configuration of the experts.

    Source: Jiang et al., Mixtral of Experts (2024).
    """
    size, count, used = build.decoder.hidden, experts.count, experts.used
    logits = build.linear(x, f"{path}.ffn_gate_inp", size, count)
    probabilities = build(path, Softmax(axis=1), logits)
    routing, chosen = build.all(path, TopK(axis=1), probabilities, build.ints(used))
    if experts.normalised:
        routing = build(path, Div(), routing, build(path, ReduceSum(), routing, build.ints(1)))

    def product(rows: Value, name: str, outputs: int, inputs: int, each: int) -> Value:
        where, bias = f"{path}.{name}_exps", f"{path}.{name}_exps.bias"
        weights = build.weight(f"{where}.weight", count, outputs, inputs)
        y = build(path, RoutedMatMul(each), rows, weights, chosen)
        if bias not in build.source:
            return y
        flat = build(path, Reshape(), chosen, build.ints(-1))
        return build(path, Add(), y, build.rows(where, count, outputs, flat, "bias"))

    gate = product(x, "ffn_gate", experts.size, size, used)
    up = product(x, "ffn_up", experts.size, size, used)
    routed = product(_gated(build, gate, up, path), "ffn_down", size, experts.size, 1)
    routed = build(path, Mul(), routed, build(path, Reshape(), routing, build.ints(-1, 1)))
    routed = build(path, Reshape(), routed, build.ints(-1, used, size))
    return build(path, ReduceSum(keepdims=False), routed, build.ints(1))


def _gated(build: DecoderBuilder, gate: Value, up: Value, path: str) -> Value:
    """Adds the product of activated gate and up projection: activation(gate) * up.

    If the decoder has a gate limit (gpt-oss), gate and up are clamped to it first, and the product
    is swish(gate) * (up + 1).
    """
    limit = build.decoder.gate_limit
    if limit:
        gate = build.clamped(gate, None, limit, path)
        up = build.clamped(up, -limit, limit, path)
        up = build(path, Add(), up, build.numbers(1.0, DType.FLOAT32))
        return build(path, Mul(), build(path, Swish(LIMITED_ALPHA), gate), up)
    return build(path, Mul(), build.activation(gate, build.decoder.activation, path), up)

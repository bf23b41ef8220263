"""MoE and QMoE: mixture of experts, with top-k routing per token.

Every expert processes every token; experts that a token is not routed to get weight 0. So weights
stay in place, packed once in their low-bit format, and shapes do not depend on data. Gathering
experts would copy their weights per token, which only pays for few tokens.
"""

from __future__ import annotations

import math
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.matmul.matmul_nbits import unpack_levels
from clrt.util.fast_dataclass import dataclass

_DOMAIN = "com.microsoft"
# End of a slice that reaches to the end of the axis.
_END = 1 << 62


@dataclass(frozen=True)
class _Layer:
    """A linear layer of all experts of MoE or QMoE, computed by Gemm or MatMulNBits.

    Attributes:
        inputs: For each expert, the inputs of its Gemm or MatMulNBits node after x.
        attrs: Attributes of MatMulNBits; {} if the layer is a Gemm.
    """

    inputs: list[list[Value | None]]
    attrs: dict[str, Any] = field(default_factory=dict)

    def __call__(self, body: ImportBuilder, x: Value, expert: int) -> Value:
        """Adds the layer of expert number `expert`, applied to x; returns its output."""
        if self.attrs:
            return body("MatMulNBits", x, *self.inputs[expert], domain=_DOMAIN, **self.attrs)
        return body("Gemm", x, *self.inputs[expert], transB=1)


def _split_experts(
    body: ImportBuilder, value: Value | None, rows: slice, like: int
) -> list[Value | None]:
    """Splits weights or biases of all experts into one value per expert, with selected rows.

    Args:
        body: Builder.
        value: Weights or biases, `[experts, rows, …]`; None if omitted.
        rows: Rows to keep.
        like: Index of an input whose axis 0 is the number of experts.

    Returns:
        For each expert `[kept rows, …]`, or None if `value` is None.
    """
    count = body.size_of(like, 0)
    if not value:
        return [None] * count
    if rows != slice(None):
        start, stop, step = (
            body.ints(default if bound is None else bound)
            for bound, default in ((rows.start, 0), (rows.stop, _END), (rows.step, 1))
        )
        value = body("Slice", value, start, stop, body.ints(1), step)
    parts = body.node("Split", [value], count, num_outputs=count, axis=0)
    return [body("Squeeze", part, body.ints(0)) for part in parts]


def _bits_of(body: ImportBuilder, index: int) -> int:
    """Returns the bits per weight of the QMoE layer whose weights are input `index`."""
    attribute = f"fc{index // 3 + 1}_expert_weight_bits"
    return int(body.attrs.get(attribute, body.attrs.get("expert_weight_bits", 4)))


def _weights_per_element(body: ImportBuilder, index: int, quantised: bool) -> int:
    """Returns the number of weights in each stored element of an MoE layer.

    This is 8 / bits for QMoE, 1 for MoE.

    Args:
        body: Builder.
        index: Input index of the layer's weights.
        quantised: Whether the op is QMoE, whose weights are packed in uint8.
    """
    return 8 // _bits_of(body, index) if quantised else 1


def _is_first_layout(body: ImportBuilder, first: int, second: int, *, quantised: bool) -> bool:
    """Returns whether weights of experts are declared as in files from before August 2025.

    Their declared shape is `[experts, inputs, outputs / n]`, although their memory is `[experts,
    outputs, inputs / n]`, with n weights per element. Sizes of input 0 and of the weights decide,
    as in ONNX Runtime's `moe_helper`.

    Args:
        body: Builder.
        first: Input index of the weights of the first layer.
        second: Input index of the weights of the second layer.
        quantised: Whether the op is QMoE.
    """
    shape = body.input_type(0).shape
    hidden = shape[-1] if shape else None
    if not isinstance(hidden, int) or hidden < 1:
        return False
    rows, columns = (body.size_of(second, axis) for axis in (1, 2))
    inner = rows * columns * _weights_per_element(body, second, quantised) // hidden
    fused = body.attrs.get("activation_type", "relu") == "swiglu" and bool(
        body.attrs.get("swiglu_fusion", 0)
    )
    if hidden == inner:
        return fused and body.size_of(first, 1) == hidden
    return rows == inner


def _weights_shape(
    body: ImportBuilder, index: int, *, swapped: bool, quantised: bool
) -> tuple[int, ...]:
    """Returns the shape of the memory of a layer's weights.

    Args:
        body: Builder.
        index: Input index of the weights.
        swapped: Whether the weights are declared in the old order of axes (`_is_first_layout`).
        quantised: Whether the op is QMoE.

    Returns:
        (experts, outputs, inputs / number of weights per element).

    Raises:
        ModelError: The input is omitted, or rows do not fill whole bytes.
        UnsupportedError: A dim is symbolic.
    """
    count, rows, columns = (body.size_of(index, axis) for axis in range(3))
    if not swapped:
        return count, rows, columns
    packs = _weights_per_element(body, index, quantised)
    if rows % packs:
        raise ModelError(f"its input {index} has {rows} rows, and {packs} weights in a byte.")
    return count, columns * packs, rows // packs


def _float_layer(
    body: ImportBuilder, index: int, rows: slice = slice(None), *, swapped: bool = False
) -> _Layer:
    """Returns a layer of MoE, or only some of its outputs.

    Args:
        body: Builder.
        index: Input index of the weights; the next input is the bias.
        rows: Outputs to keep: rows of an expert's weights `[outputs, inputs]`.
        swapped: Whether the weights are declared in the old order of axes (`_is_first_layout`).
    """
    weights = body.inputs[index]
    if swapped:
        shape = _weights_shape(body, index, swapped=True, quantised=False)
        weights = body("Reshape", weights, body.ints(*shape))
    values = (weights, body.optional(index + 1))
    each = [_split_experts(body, value, rows, index) for value in values]
    return _Layer([list(inputs) for inputs in zip(*each, strict=True)])


def _quantised_layer(
    body: ImportBuilder, index: int, rows: slice = slice(None), *, swapped: bool = False
) -> _Layer:
    """Returns a layer of QMoE, or only some of its outputs.

    Blocks of inputs, or whole rows, share a scale and a zero point. Zero points of the layers are
    inputs 11, 12 and 13.

    Args:
        body: Builder.
        index: Input index of the weights, `[experts, outputs, inputs * bits / 8]`; the next two
            inputs are scales and bias.
        rows: Outputs to keep: rows of an expert's weights `[outputs, inputs]`.
        swapped: Whether the weights are declared in the old order of axes (`_is_first_layout`).
    """
    number, bits = index // 3 + 1, _bits_of(body, index)
    weights, scales = (body.array_of(i) for i in (index, index + 1))
    weights = weights.reshape(_weights_shape(body, index, swapped=swapped, quantised=True))
    count, k = weights.shape[1], weights.shape[2] * 8 // bits
    block = int(body.attrs.get("block_size", 0))
    zeros: Array | None = None
    if body.has(10 + number):
        size = k // block if block else count
        zeros = unpack_levels(body.array_of(10 + number), bits)[..., :size].astype(scales.dtype)
    if scales.ndim == 2:
        # One scale per row: all blocks share it.
        block = math.gcd(k, 128)
        scales = np.repeat(scales[..., None], k // block, axis=2)
        zeros = None if zeros is None else np.repeat(zeros[..., None], k // block, axis=2)
    weights = weights.reshape(*weights.shape[:2], k // block, -1)
    each = [
        [None] * len(weights)
        if array is None
        else [body.constant(np.ascontiguousarray(expert_array[rows])) for expert_array in array]
        for array in (weights, scales, zeros)
    ]
    bias = _split_experts(body, body.optional(index + 2), rows, index)
    attrs = {"K": k, "N": len(range(count)[rows]), "bits": bits, "block_size": block}
    none = [None] * len(weights)
    return _Layer([list(inputs) for inputs in zip(*each, none, bias, strict=True)], attrs)


def _expert_weights(body: ImportBuilder, weights: Value | None, *, among_best: bool) -> list[Value]:
    """Returns the weight of each expert in the result of each token.

    Each token selects the k experts with the largest router logits; of equal logits, the expert
    with the larger index wins. The weights of selected experts are the softmax of the logits,
    unless `weights` replaces it.

    Args:
        body: Builder; input 1 holds the logits, `[tokens, experts]`.
        weights: Weights that replace the softmax, `[tokens, experts]`; divided by the sum of those
            of the selected experts if `normalize_routing_weights` is set. None for the softmax.
        among_best: Whether the softmax covers the logits of selected experts only.

    Returns:
        For each expert `[tokens, 1]`; 0 for tokens that do not select it.
    """
    logits, axis, count = body.inputs[1], body.ints(1), body.size_of(2, 0)
    reversed_logits = body("Slice", logits, body.ints(-1), body.ints(-_END), axis, body.ints(-1))
    best, reversed_indices = body.node(
        "TopK", [reversed_logits, body.ints(int(body.attrs.get("k", 1)))], 2, axis=1
    )
    indices = body("Sub", body.numbers(count - 1), reversed_indices)
    if among_best and not weights:
        shares = body("Softmax", best, axis=1)
    else:
        shares = body("GatherElements", weights or body("Softmax", logits, axis=1), indices, axis=1)
        if body.attrs.get("normalize_routing_weights", 0):
            shares = body("Div", shares, body("ReduceSum", shares, axis))
    zeros = body("Expand", body.number(0.0, 1), body("Shape", logits))
    every = body("ScatterElements", zeros, indices, shares, axis=1)
    return body.node("Split", [every], count, num_outputs=count, axis=1)


def _swiglu(body: ImportBuilder, gate: Value, linear: Value) -> Value:
    """Returns SwiGLU: gate * sigmoid(alpha * gate) * (linear + beta).

    With attribute `swiglu_limit`, `gate` is limited from above, and `linear` on both sides.

    Args:
        body: Builder; the node's attributes set alpha, beta and the limit.
        gate: Output of the gate projection.
        linear: Output of the other (up) projection.
    """
    alpha, beta = (body.attrs.get(f"activation_{n}", d) for n, d in (("alpha", 1.0), ("beta", 0.0)))
    if "swiglu_limit" in body.attrs:
        high = body.attrs["swiglu_limit"]
        gate = body("Min", gate, body.number(high))
        linear = body("Clip", linear, body.number(-high), body.number(high))
    swish = body("Mul", gate, body("Sigmoid", body("Mul", gate, body.number(alpha))))
    return body("Mul", swish, body("Add", linear, body.number(beta)))


def _activated(body: ImportBuilder, x: Value) -> Value:
    """Applies the activation in the node's attribute `activation_type` to x.

    Raises:
        UnsupportedError: The activation is unknown.
    """
    match body.attrs.get("activation_type", "relu"):
        case "relu":
            return body("Relu", x)
        case "gelu":
            return body("Gelu", x, approximate="tanh")
        case "silu":
            return body("Swish", x)
        case "identity":
            return x
        case other:
            raise UnsupportedError(f"activation_type '{other}'")


def _mix(
    body: ImportBuilder, layers: tuple[int, int, int], shares: list[Value], *, quantised: bool
) -> None:
    """Decomposes MoE or QMoE: the weighted sum of the results of all experts.

    Args:
        body: Builder; its output is set.
        layers: Input indices of the weights of three layers: first (gate), second (down), and third
            (up), which only SwiGLU uses.
        shares: For each expert its weight in the result of each token, `[tokens, 1]`.
        quantised: Whether the op is QMoE.

    Raises:
        UnsupportedError: The activation is unknown, or there is a third layer without SwiGLU.
    """
    first, second, third = layers
    swapped = _is_first_layout(body, first, second, quantised=quantised)
    make_layer = partial(_quantised_layer if quantised else _float_layer, swapped=swapped)
    down, gated = make_layer(body, second), body.attrs.get("activation_type", "relu") == "swiglu"
    linear: _Layer | None = None
    if not gated:
        if body.has(third):
            raise UnsupportedError("a third layer of experts without swiglu")
        gate = make_layer(body, first)
    else:
        half = _weights_shape(body, first, swapped=swapped, quantised=quantised)[1] // 2
        match int(body.attrs.get("swiglu_fusion", 0)):
            case 0:
                gate, linear = make_layer(body, first), make_layer(body, third)
            case 1:
                gate, linear = (make_layer(body, first, slice(start, None, 2)) for start in (0, 1))
            case _:
                gate, linear = (
                    make_layer(body, first, rows) for rows in (slice(half), slice(half, None))
                )
    x = body.inputs[0]
    tokens = body("Reshape", x, body("Concat", body.ints(-1), body("Shape", x, start=-1), axis=0))
    total = None
    for expert, share in enumerate(shares):
        inner = gate(body, tokens, expert)
        if linear is None:
            inner = _activated(body, inner)
        else:
            inner = _swiglu(body, inner, linear(body, tokens, expert))
        part = body("Mul", down(body, inner, expert), share)
        total = body("Add", total, part) if total else part
    body.outputs = [body("Reshape", total, body("Shape", x), allowzero=1)]


@register_import_decomposition(_DOMAIN, "MoE")
def _moe(body: ImportBuilder) -> None:
    """Decomposes MoE, a mixture of experts: a weighted sum of feed-forward networks per token.

    Inputs: tokens; router logits; then for each layer weights `[experts, outputs, inputs]` and
    bias.

    `use_sparse_mixer` is ignored, as in ONNX Runtime on CPUs.
    """
    normal = bool(body.attrs.get("normalize_routing_weights", 0))
    _mix(body, (2, 4, 6), _expert_weights(body, None, among_best=normal), quantised=False)


@register_import_decomposition(_DOMAIN, "QMoE")
def _qmoe(body: ImportBuilder) -> None:
    """Decomposes QMoE, a mixture of experts with quantized weights.

    Inputs: tokens; router logits; packed weights, scales and bias of each layer; zero points of
    each layer; and optional weights of the experts for each token, which replace the softmax of the
    logits. `normalize_routing_weights` applies only to these optional weights, as in ONNX Runtime
    on CPUs.
    """
    kind = body.attrs.get("quant_type", "int")
    if kind != "int" or body.attrs.get("weights_prepacked", -1) > 0:
        raise UnsupportedError(f"weights of quant_type '{kind}', or packed for a GPU of one kind")
    shares = _expert_weights(body, body.optional(14), among_best=True)
    _mix(body, (2, 5, 8), shares, quantised=True)

"""MoE and QMoE: of several experts, each token goes by those that its router likes best.

Every expert takes every token, and a token's result has a weight of 0 for those that it does not go
by. So weights stay where they are, packed once and in as few bits as they come, and shapes do not
depend on data; gathered experts would be copied for each token, which only pays for few of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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

_DOMAIN = "com.microsoft"
_END = 1 << 62


@dataclass(frozen=True)
class _Layer:
    """A layer of all experts.

    Attributes:
        inputs: Of a product behind its operand, by expert: weights and bias, or what MatMulNBits
            takes, whose attributes follow.
    """

    inputs: list[list[Value | None]]
    attrs: dict[str, Any] = field(default_factory=dict)

    def __call__(self, body: ImportBuilder, x: Value, expert: int) -> Value:
        if self.attrs:
            return body("MatMulNBits", x, *self.inputs[expert], domain=_DOMAIN, **self.attrs)
        return body("Gemm", x, *self.inputs[expert], transB=1)


def _each(body: ImportBuilder, value: Value | None, rows: slice, like: int) -> list[Value | None]:
    """Rows of a value `[E, N, …]` by expert; None where it is left out.

    Args:
        like: The input whose first axis has E.
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
    """Bits of the levels of the layer of QMoE whose weights are an input."""
    own = f"fc{index // 3 + 1}_expert_weight_bits"
    return int(body.attrs.get(own, body.attrs.get("expert_weight_bits", 4)))


def _packs(body: ImportBuilder, index: int, quantised: bool) -> int:
    """Weights in an element of the layer whose weights are an input."""
    return 8 // _bits_of(body, index) if quantised else 1


def _is_first_layout(body: ImportBuilder, first: int, second: int, *, quantised: bool) -> bool:
    """Whether weights are declared as `[E, in, out / packs]`, and lie as `[E, out, in / packs]`.

    Files made before August 2025 say so; the shapes tell, as in ONNX Runtime's `moe_helper`.

    Args:
        first, second: Inputs that are the weights of these layers.
    """
    shape = body.input_type(0).shape
    hidden = shape[-1] if shape else None
    if not isinstance(hidden, int) or hidden < 1:
        return False
    rows, columns = (body.size_of(second, axis) for axis in (1, 2))
    inner = rows * columns * _packs(body, second, quantised) // hidden
    fused = body.attrs.get("activation_type", "relu") == "swiglu" and bool(
        body.attrs.get("swiglu_fusion", 0)
    )
    if hidden == inner:
        return fused and body.size_of(first, 1) == hidden
    return rows == inner


def _weights_shape(
    body: ImportBuilder, index: int, *, swapped: bool, quantised: bool
) -> tuple[int, ...]:
    """`[E, out, in / packs]` of the weights of a layer.

    Args:
        swapped: Whether they are declared the other way round (`_is_first_layout`).

    Raises:
        ModelError, UnsupportedError: The input is left out, or a dim is not known.
    """
    count, rows, columns = (body.size_of(index, axis) for axis in range(3))
    if not swapped:
        return count, rows, columns
    packs = _packs(body, index, quantised)
    if rows % packs:
        raise ModelError(f"its input {index} has {rows} rows, and {packs} weights in a byte.")
    return count, columns * packs, rows // packs


def _float_layer(
    body: ImportBuilder, index: int, rows: slice = slice(None), *, swapped: bool = False
) -> _Layer:
    """Rows of the layer whose weights are an input, with the bias behind it."""
    weights = body.inputs[index]
    if swapped:
        shape = _weights_shape(body, index, swapped=True, quantised=False)
        weights = body("Reshape", weights, body.ints(*shape))
    values = (weights, body.optional(index + 1))
    each = [_each(body, value, rows, index) for value in values]
    return _Layer([list(inputs) for inputs in zip(*each, strict=True)])


def _quantised_layer(
    body: ImportBuilder, index: int, rows: slice = slice(None), *, swapped: bool = False
) -> _Layer:
    """Rows of the layer whose weights `[E, N, K * bits / 8]` are an input; scales, a bias follow.

    Levels are in blocks along K, or all in one. Zero points are inputs behind those of all layers.
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
        # One scale for a row: blocks share it.
        block = math.gcd(k, 128)
        scales = np.repeat(scales[..., None], k // block, axis=2)
        zeros = None if zeros is None else np.repeat(zeros[..., None], k // block, axis=2)
    weights = weights.reshape(*weights.shape[:2], k // block, -1)
    each = [
        [None] * len(weights)
        if array is None
        else [body.constant(np.ascontiguousarray(own[rows])) for own in array]
        for array in (weights, scales, zeros)
    ]
    bias = _each(body, body.optional(index + 2), rows, index)
    attrs = {"K": k, "N": len(range(count)[rows]), "bits": bits, "block_size": block}
    none = [None] * len(weights)
    return _Layer([list(inputs) for inputs in zip(*each, none, bias, strict=True)], attrs)


def _shares(body: ImportBuilder, given: Value | None, *, among_best: bool) -> list[Value]:
    """How much each expert has of the result of each token, `[T, 1]`; of two equals the last wins.

    Args:
        given: Shares of all experts, of which those of the best are taken; None for the softmax.
        among_best: The softmax is among the best only.
    """
    logits, axis, count = body.inputs[1], body.ints(1), body.size_of(2, 0)
    turned = body("Slice", logits, body.ints(-1), body.ints(-_END), axis, body.ints(-1))
    best, behind = body.node("TopK", [turned, body.ints(int(body.attrs.get("k", 1)))], 2, axis=1)
    places = body("Sub", body.scalar(count - 1), behind)
    if among_best and not given:
        shares = body("Softmax", best, axis=1)
    else:
        shares = body("GatherElements", given or body("Softmax", logits, axis=1), places, axis=1)
        if body.attrs.get("normalize_routing_weights", 0):
            shares = body("Div", shares, body("ReduceSum", shares, axis))
    none = body("Expand", body.number(0.0, 1), body("Shape", logits))
    every = body("ScatterElements", none, places, shares, axis=1)
    return body.node("Split", [every], count, num_outputs=count, axis=1)


def _swiglu(body: ImportBuilder, gate: Value, linear: Value) -> Value:
    alpha, beta = (body.attrs.get(f"activation_{n}", d) for n, d in (("alpha", 1.0), ("beta", 0.0)))
    if "swiglu_limit" in body.attrs:
        high = body.attrs["swiglu_limit"]
        gate = body("Min", gate, body.number(high))
        linear = body("Clip", linear, body.number(-high), body.number(high))
    swish = body("Mul", gate, body("Sigmoid", body("Mul", gate, body.number(alpha))))
    return body("Mul", swish, body("Add", linear, body.number(beta)))


def _activated(body: ImportBuilder, x: Value) -> Value:
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
    """The sum of what the experts make of the tokens.

    Args:
        layers: The inputs that are the weights of the three layers.
    """
    first, second, third = layers
    swapped = _is_first_layout(body, first, second, quantised=quantised)
    make = partial(_quantised_layer if quantised else _float_layer, swapped=swapped)
    down, gated = make(body, second), body.attrs.get("activation_type", "relu") == "swiglu"
    linear: _Layer | None = None
    if not gated:
        if body.has(third):
            raise UnsupportedError("a third layer of experts without swiglu")
        gate = make(body, first)
    else:
        half = _weights_shape(body, first, swapped=swapped, quantised=quantised)[1] // 2
        match int(body.attrs.get("swiglu_fusion", 0)):
            case 0:
                gate, linear = make(body, first), make(body, third)
            case 1:
                gate, linear = (make(body, first, slice(start, None, 2)) for start in (0, 1))
            case _:
                gate, linear = (
                    make(body, first, rows) for rows in (slice(half), slice(half, None))
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
    """Inputs: tokens, logits of the experts, then weights `[E, out, in]` and a bias of each layer.

    `use_sparse_mixer` changes nothing, as in ONNX Runtime on CPUs.
    """
    normal = bool(body.attrs.get("normalize_routing_weights", 0))
    _mix(body, (2, 4, 6), _shares(body, None, among_best=normal), quantised=False)


@register_import_decomposition(_DOMAIN, "QMoE")
def _qmoe(body: ImportBuilder) -> None:
    """Inputs: tokens, logits of the experts, then packed weights, scales and a bias of each layer,
    zero points of each, and shares to take instead of the softmax of the best logits.

    `normalize_routing_weights` is about those only, as in ONNX Runtime on CPUs.
    """
    kind = body.attrs.get("quant_type", "int")
    if kind != "int" or body.attrs.get("weights_prepacked", -1) > 0:
        raise UnsupportedError(f"weights of quant_type '{kind}', or packed for a GPU of one kind")
    shares = _shares(body, body.optional(14), among_best=True)
    _mix(body, (2, 5, 8), shares, quantised=True)

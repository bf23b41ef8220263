"""Gates and norms of com.microsoft for gated and hybrid models."""

from __future__ import annotations

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)

_DOMAIN = "com.microsoft"


def _as_input(body: ImportBuilder, value: Value, index: int = 0) -> Value:
    """Casts a float32 value to the dtype of input `index`."""
    dtype = body.input_dtype(index)
    return value if dtype is DType.FLOAT32 else body.cast(value, dtype)


@register_import_decomposition(_DOMAIN, "ScaledSiLU")
def _scaled_silu(body: ImportBuilder) -> None:
    scale = body.as_float32(1) if body.has(1) else body.floats(body.attrs.get("alpha", 1.0))
    scaled = _as_input(body, body("Mul", body.as_float32(), scale))
    body.outputs = [body("Mul", scaled, body("Sigmoid", scaled))]


@register_import_decomposition(_DOMAIN, "GatedAdd")
def _gated_add(body: ImportBuilder) -> None:
    x, y, gate = body.inputs[:3]
    body.outputs = [body("Add", x, body("Mul", y, gate))]


@register_import_decomposition(_DOMAIN, "GatedRMSNorm")
def _gated_rms_norm(body: ImportBuilder) -> None:
    """Decomposes GatedRMSNorm: RMS norm of each group of x, times the activation of a gate.

    Inputs: x `[…, groups * size]`; scale `[size]`; gate, in the shape of x. Numerics: computed in
    float32.
    """
    size = body("Concat", body.ints(-1), body("Shape", body.inputs[1]), axis=0)
    epsilon = body.attrs.get("epsilon", 1e-5)
    rows = body("Reshape", body.as_float32(), size)
    y = body("RMSNormalization", rows, body.as_float32(1), axis=-1, epsilon=epsilon)
    gate = body.as_float32(2)
    match body.attrs.get("activation", "silu"):
        case "silu" | "swish":
            gate = body("Swish", gate)
        case "sigmoid":
            gate = body("Sigmoid", gate)
        case other:
            raise UnsupportedError(f"activation '{other}'")
    normalised = body("Reshape", y, body("Shape", body.inputs[0]), allowzero=1)
    body.outputs = [_as_input(body, body("Mul", normalised, gate))]


@register_import_decomposition(_DOMAIN, "BranchwiseRMSNorm")
def _branchwise_rms_norm(body: ImportBuilder) -> None:
    """Decomposes BranchwiseRMSNorm: the RMS norm of each branch of x.

    Inputs: x `[…, branches, size]`, or `[…, branches * size]` if `num_branches` is set; optional
    scale `[branches * size]`, `[branches, size]` or `[size]`. Numerics: computed in float32.
    """
    branches, x = int(body.attrs.get("num_branches", 0)), body.as_float32()
    if branches:
        lead = body("Shape", x, end=-1)
        x = body("Reshape", x, body("Concat", lead, body.ints(branches, -1), axis=0))
    unit = body.constant(np.ones(1, np.float32))
    unit = body("Expand", unit, body("Shape", x, start=-1))
    y = body("RMSNormalization", x, unit, axis=-1, epsilon=body.attrs.get("epsilon", 1e-5))
    if body.has(1):
        scale = body.as_float32(1)
        if body.rank_of(1) == 1:
            # One row per branch, or one for all branches.
            width = body("Shape", x, start=-1)
            scale = body("Reshape", scale, body("Concat", body.ints(-1), width, axis=0))
        y = body("Mul", y, scale)
    if branches:
        y = body("Reshape", y, body("Shape", body.inputs[0]), allowzero=1)
    body.outputs = [_as_input(body, y)]


@register_import_decomposition(_DOMAIN, "LinearAttentionGate")
def _linear_attention_gate(body: ImportBuilder) -> None:
    """Decomposes LinearAttentionGate, which computes two inputs of LinearAttention.

    Inputs: a, bias of a, scale, optional b. Output 0 is the logarithm of the decay, scale *
    softplus(a + bias), computed in float32. Output 1 is the learning rate, sigmoid(b).
    """
    total = body("Add", body.as_float32(), body.inputs[1])
    decay = body("Mul", body.inputs[2], body("Softplus", total))
    body.outputs = [_as_input(body, decay)]
    if body.has(3):
        body.outputs.append(body("Sigmoid", body.inputs[3]))

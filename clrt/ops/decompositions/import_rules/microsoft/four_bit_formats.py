"""Products of com.microsoft with 4-bit weights in special formats."""

from __future__ import annotations

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.decompositions.import_rules.microsoft.quantised import unpacked

_DOMAIN = "com.microsoft"
# Value of each quantized level. Source: bitsandbytes; NF4 has quantiles of the normal distribution.
_FP4 = (0.0, 0.0052083333, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
_NF4 = (
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip
_TABLES = ((*_FP4, *(-value for value in _FP4)), _NF4)


@register_import_decomposition(_DOMAIN, "MatMulBnb4")
def _matmul_bnb4(body: ImportBuilder) -> None:
    """Decomposes MatMulBnb4: a matrix product with weights in a 4-bit float format.

    Inputs: A; 4-bit codes of the flattened weights `[columns of the result, columns of A]`, upper
    half of a byte first; the scale of each block. Each code stands for a value of a table (FP4 or
    NF4), which is multiplied by the scale.
    """
    n, k, block = (int(body.attrs[name]) for name in ("N", "K", "block_size"))
    kind = int(body.attrs["quant_type"])
    if kind not in range(len(_TABLES)):
        raise ModelError(f"quant_type {kind} is not 0 or 1; export the model again.")
    dtype, count = body.input_dtype(), -(-n * k // block)
    flat = body("Reshape", body.inputs[1], body.ints(-1, 1))
    halves = body("Reshape", unpacked(body, flat, 4), body.ints(-1, 2))
    high_first = body("Gather", halves, body.ints(1, 0), axis=1)
    levels = body.cast(body("Reshape", high_first, body.ints(-1)), DType.INT32)
    used = body.slice(levels, 0, n * k, 0)
    values = body("Gather", body.constant(np.array(_TABLES[kind], dtype.numpy)), used)
    blocks = body("Reshape", body.inputs[2], body.ints(count, 1))
    scales = body("Reshape", body("Expand", blocks, body.ints(1, block)), body.ints(-1))
    scales = body.slice(scales, 0, n * k, 0)
    weights = body("Reshape", body("Mul", values, scales), body.ints(n, k))
    if body.attrs.get("transB", 1):
        weights = body("Transpose", weights, perm=[1, 0])
    body.outputs = [body("MatMul", body.inputs[0], weights)]


@register_import_decomposition(_DOMAIN, "MatMulFpQ4")
def _matmul_fp_q4(body: ImportBuilder) -> None:
    """Decomposes MatMulFpQ4: a matrix product with 4-bit quantized weights.

    Inputs: A; blocks of 32 levels, column by column of the weights; the weights' (rows, columns).

    A block has a 4-byte scale, a 1-byte zero point (if `blk_quant_type` is 1), then 16 bytes of
    levels: the lower halves of the bytes hold the first 16 levels, the upper halves the last 16.
    """
    kind = int(body.attrs.get("blk_quant_type", 1))
    if kind not in (0, 1):
        raise UnsupportedError(f"blk_quant_type {kind}")
    blob, (k, n) = body.array_of(1), (int(v) for v in body.array_of(2))
    blocks = blob.reshape(n, -(-k // 32), 20 + kind)
    scales = np.ascontiguousarray(blocks[..., :4]).view(np.float32)
    zeros = body.constant(blocks[..., 4].astype(np.float32)) if kind else None
    packed = blocks[..., 4 + kind :]
    levels = np.concatenate([packed & 15, packed >> 4], axis=-1)
    weights = body.constant(levels[..., ::2] | levels[..., 1::2] << 4)
    inputs = [body.inputs[0], weights, body.constant(scales[..., 0]), zeros]
    attrs = {"K": k, "N": n, "bits": 4, "block_size": 32}
    body.outputs = [body("MatMulNBits", *inputs, domain=_DOMAIN, **attrs)]

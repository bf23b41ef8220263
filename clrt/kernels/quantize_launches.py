"""Launches of QuantizeLinear and DequantizeLinear, and their indexing of scales and zero points."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import ml_dtypes
import numpy as np

from clrt.ir.cl_code import Code, Define
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.spec import Buffer, KernelSpec, Launch, PackedWeight, launch, optional
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.variant import Lowering
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

# Dtypes whose constants are stored two elements per byte on the device.
_PAIRS = (DType.INT4, DType.UINT4)


class QuantizePartition(Thresholds):
    """Threshold of the partition of quantization into CPU work-items."""

    elems: int = tunable(
        1024,
        "elements",
        "Quantized by a work-item, in private memory, to amortize its start.",
        most=4096,
    )

    group: ClassVar = "quantize_shares"


@dataclass(frozen=True)
class ScaleIndexing:
    """Maps each element of a tensor [outer, n, inner] to its scale and zero point.

    Attributes:
        outer: Product of the dims before the quantized axis.
        n: Size of the quantized axis.
        inner: Product of the dims after the quantized axis.
        block: Consecutive elements along the quantized axis that share a scale.
        strides: Strides of the scales, in elements, along outer, the blocks of n, and inner.
    """

    outer: int
    n: int
    inner: int
    block: int = 1
    strides: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(cls, dims: Sequence[int], axis: int, block: int, *, one: bool) -> ScaleIndexing:
        """Returns the scale indexing of ONNX's per-tensor, per-axis or blocked quantization.

        Args:
            dims: Shape of the tensor.
            axis: The quantized axis.
            block: Elements per block along the axis; 0 for one scale per index of the axis.
            one: Whether the tensor has a single scale.
        """
        if one:
            return cls(1, prod(dims), 1)
        outer, n, inner = prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])
        if not block:
            return cls(outer, n, inner, 1, (0, 1, 0))
        return cls(outer, n, inner, block, (ceil_div(n, block) * inner, inner, 1))

    @property
    def args(self) -> dict[str, int]:
        """Kernel arguments of the macro WALK: sizes, block size and strides."""
        s_outer, s_n, s_inner = self.strides
        sizes = {"inner": self.inner, "n": self.n, "outer": self.outer, "block": max(self.block, 1)}
        return {**sizes, "s_outer": s_outer, "s_n": s_n, "s_inner": s_inner}

    @property
    def defines(self) -> dict[str, Define]:
        """Macros by which kernels choose their index arithmetic; each is 0 or 1.

        UNIFORM: there is one scale. LAST: the quantized axis is the last one. BLOCKED: blocks have
        more than one element.
        """
        uniform = not any(self.strides)
        last = not uniform and self.inner == 1
        return {"UNIFORM": int(uniform), "LAST": int(last), "BLOCKED": int(self.block > 1)}

    @property
    def grid(self) -> tuple[int, ...]:
        if not any(self.strides):
            return (self.n,)
        if self.inner == 1:
            return (self.n, self.outer)
        return (self.inner, self.n, self.outer)

    def launch(
        self, entry: str, defines: dict[str, Define], ctx: Lowering, **tensors: Buffer | None
    ) -> Launch:
        """Returns the launch of a kernel of quantize_linear.cl over all elements of the tensor.

        A work-item computes several elements on CPUs, one on GPUs.

        Args:
            entry: Name of the kernel function.
            defines: Macros besides `ScaleIndexing.defines`, which are added.
            tensors: Tensor arguments by name; None for absent ones.
        """
        elems = ctx.thresholds(QuantizePartition).elems if ctx.caps.is_cpu else 1
        kernel = KernelSpec.of(
            "pointwise/quantize_linear.cl", entry, **defines, **self.defines, ELEMS=elems
        )
        first, *rest = self.grid
        grid = (ceil_div(first, elems), *rest)
        local = (1,) * len(grid) if elems > 1 else None
        return launch(kernel, grid, local, **optional(**tensors), **self.args)


def quantize_launch(
    y: Value,
    x: Value,
    scale: Value,
    zero: Value | None,
    quotient: DType,
    saturate: bool,
    walk: ScaleIndexing,
    ctx: Lowering,
) -> Launch:
    """Returns the launch of QuantizeLinear.

    Args:
        y: Quantized output.
        x: Input.
        scale: Scales.
        zero: Zero points; None for 0.
        quotient: 16- or 32-bit float dtype to which x / scale is rounded.
        saturate: Whether values beyond the range of an 8-bit float become its largest number; of
            no effect for integers.
        walk: Maps each element of x to its scale and zero point.
    """
    low, high = (Code("{}f").substitute(b) for b in bounds(y.dtype))
    defines = dict(
        **_reads("DATA", x.dtype),
        **_reads("SCALE", scale.dtype),
        **_reads("ZERO", (zero or y).dtype),
        OUT_T=y.dtype.cl,
        OUT_VALUE_T=y.dtype.compute,
        STORED=y.dtype.storage,
        SCALED=1,
        CENTERED=int(zero is not None),
        QUOTIENT=quotient.storage,
        TO_FLOAT=int(y.dtype.is_float),
        SATURATE=int(saturate),
        LOW=low,
        HIGH=high,
    )
    return walk.launch("quantize_linear", defines, ctx, y=y, x=x, scale=scale, zero=zero)


def dequantize_launch(
    y: Buffer,
    to: DType,
    x: Value,
    scale: Value | None,
    zero: Value | None,
    walk: ScaleIndexing,
    ctx: Lowering,
) -> Launch:
    """Returns the launch of DequantizeLinear.

    A constant x of 4-bit integers is packed two elements per byte.

    Args:
        y: Output.
        to: Dtype of y.
        x: Quantized input.
        scale: Scales; None computes x minus its zero points.
        zero: Zero points; None for 0.
        walk: Maps each element of x to its scale and zero point.
    """
    reads = _reads("DATA", x.dtype)
    source: Buffer = x
    if x.dtype in _PAIRS and x.is_constant and x.has_numbers:
        source = PackedWeight(x, "pairs", pack_pairs, ceil_div(prod(x.dims), 2))
        reads["DATA"] = Code("{}_pairs").substitute(x.dtype.storage)
    defines = dict(
        **reads,
        **_reads("SCALE", (scale or x).dtype),
        **_reads("ZERO", (zero or x).dtype),
        VALUE_T=(DType.FLOAT32 if x.dtype.is_float else DType.INT32).cl,
        OUT_T=to.cl,
        OUT_VALUE_T=to.compute,
        STORED=to.storage,
        SCALED=int(scale is not None),
        CENTERED=int(zero is not None),
    )
    return walk.launch("dequantize_linear", defines, ctx, y=y, x=source, scale=scale, zero=zero)


def _reads(name: str, dtype: DType) -> dict[str, Define]:
    return {f"{name}_T": dtype.cl, name: dtype.storage}


def pack_pairs(array: Array) -> Array:
    """Packs 4-bit elements two per byte; returns uint8 [bytes].

    The first element of a pair is in the low bits.
    """
    codes = array.reshape(-1).view(np.uint8) & np.uint8(15)
    if codes.size % 2:
        codes = np.append(codes, np.uint8(0))
    return np.asarray(codes[::2] | codes[1::2] << np.uint8(4))


def bounds(dtype: DType) -> tuple[float, float]:
    """Returns the smallest and the largest finite value of a dtype."""
    if dtype.is_float:
        float_limits = ml_dtypes.finfo(dtype.numpy)
        return float(float_limits.min), float(float_limits.max)
    limits = ml_dtypes.iinfo(dtype.numpy)
    return float(limits.min), float(limits.max)

"""Int8 GEMM on CPUs by dot-product instructions, with a constant B of 8-bit integers.

A has 8-bit integers, or is float32 and quantized to 8 bits by the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from clrt.device.caps import VNNI_INT8
from clrt.ir.cl_code import Define
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.gemm_problem import GemmProblem, merge
from clrt.kernels.gemm_tile import is_whole
from clrt.kernels.gemm_variants import LEVELS
from clrt.kernels.quantized_weights import QuantizedWeights
from clrt.kernels.size_formulas import balanced_share
from clrt.kernels.spec import KernelSpec, Launch, PackedWeight, Scratch, launch, optional
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.variant import Lowering
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up

WIDTH = 32
"""Columns per panel of B."""
# Neighbours along K that one dot-product instruction multiplies per column.
_DOT_DEPTH = 4
_SIGN = np.uint8(0x80)
MAX_ROWS = 64
"""Maximum rows of the result per work-group."""
_TILE_ROWS = 8


class Int8Partition(Thresholds):
    """Threshold of the partition of a GEMM of bytes (gemm_bytes_cpu) over cores."""

    groups: int = tunable(
        2,
        "work-groups per core",
        "Target if the rows alone give fewer; more would repeat the quantization of rows of A.",
    )

    group: ClassVar = "gemm_bytes_shares"


@dataclass(frozen=True)
class Int8Weights(QuantizedWeights):
    """Constant 8-bit B `[K, N]`: an element is a level minus the zero point of its column.

    Attributes:
        k: Rows of B, the summed axis K.
        n: Columns of B.
        transposed: Whether `value` is `[N, K]`.
        value: The levels, int8 or uint8, `[K, N]` or `[N, K]`.
        zeros: Zero points in the levels' dtype, `[N]` or a single element; None for 0.
    """

    k: int
    n: int
    transposed: bool
    value: Value
    zeros: Value | None

    @property
    def depth(self) -> int:
        """Size of the summed axis, rounded up to a multiple of 4."""
        return round_up(self.k, _DOT_DEPTH)

    @property
    def record(self) -> int:
        """Bytes per packed panel of B."""
        return record_bytes(self.depth)

    @property
    def defines(self) -> dict[str, Define]:
        return {}

    def args(self, columns: int) -> dict[str, Any]:
        return {"b": self.packed}

    @property
    def packed(self) -> PackedWeight:
        """B packed in panels: levels, then per column a start value, a zero point and a scale."""
        order = ":transposed" if self.transposed else ""
        name = f"bytes:{self.k}x{self.n}{order}:{self.about}"
        return PackedWeight(self.value, name, self._pack, ceil_div(self.n, WIDTH) * self.record)

    @property
    def about(self) -> str:
        """Suffix of the layout name: names of the constants packed with B's levels; "" if none.

        So weights of equal levels but other zero points or scales differ in their layout names.
        """
        return "" if self.zeros is None else self.zeros.name

    def scale_columns(self, columns: Array) -> None:
        """Applies the scales of A and B to the column data of packed B, in place.

        Does nothing in this class, which has no scales; `ScaledInt8Weights` overrides it.

        Args:
            columns: int32 `[3, N]`: start values, zero points, and bits of the float32 scales.
        """

    def columns(self, array: Array) -> Array:
        """Returns B's levels as uint8 `[columns of B, rows of B]`.

        Args:
            array: Elements of `value`, int8 or uint8.
        """
        return unsigned(array if self.transposed else array.T)

    def by_column(self, numbers: Array) -> Array:
        """Returns zero points of B as a vector: one per column, or a single one.

        Args:
            numbers: The zero points, of any shape.
        """
        return numbers.reshape(-1)

    def _pack(self, array: Array) -> Array:
        """Packs B's levels on the host; returns uint8 `[panels, record]`.

        Args:
            array: Elements of `value`, int8 or uint8.
        """
        levels = np.zeros((self.n, self.depth), np.uint8)
        levels[:, : self.k] = self.columns(array)
        columns = np.zeros((3, self.n), np.int32)
        zeros = np.zeros(1, array.dtype) if self.zeros is None else self.zeros.numbers
        assert zeros is not None
        columns[1] = self.by_column(unsigned(zeros))
        sums = levels.sum(axis=1, dtype=np.int64)
        columns[0] = sums - self.k * columns[1].astype(np.int64)
        self.scale_columns(columns)
        return pack_panels(levels, columns)


def record_bytes(depth: int) -> int:
    """Returns the size of a packed panel of B in bytes, for `depth` rows of B."""
    return WIDTH * (depth + 3 * 4)


def pack_panels(levels: Array, columns: Array) -> Array:
    """Packs levels of B and the data of its columns in panels of 32 columns, padded with zeros.

    Args:
        levels: uint8 `[N, depth]`, `depth` a multiple of 4.
        columns: int32 `[3, N]`: start values, zero points, and bits of the float32 scales.

    Returns:
        uint8 `[panels, record_bytes(depth)]`.
    """
    count, depth = levels.shape
    panels, groups = ceil_div(count, WIDTH), depth // _DOT_DEPTH
    whole = np.zeros((panels * WIDTH, depth), np.uint8)
    whole[:count] = levels
    data = np.zeros((3, panels * WIDTH), np.int32)
    data[:, :count] = columns
    records = np.empty((panels, record_bytes(depth)), np.uint8)
    fours = whole.reshape(panels, WIDTH, groups, _DOT_DEPTH).swapaxes(1, 2)
    records[:, : WIDTH * depth] = fours.reshape(panels, -1)
    by_panel = data.reshape(3, panels, WIDTH).swapaxes(0, 1)
    tail = np.ascontiguousarray(by_panel).view(np.uint8)
    records[:, WIDTH * depth :] = tail.reshape(panels, -1)
    return records


@dataclass(frozen=True)
class ScaledInt8Weights(Int8Weights):
    """`Int8Weights` with a scale per column, for a float32 A that the kernel quantizes.

    Attributes:
        scales: Scales of B's columns, float32 `[N]`.
        a_scale: Scale of A, the same for all elements.
        low: Smallest quantized value of A.
        high: Largest quantized value of A, at most `low` + 255.
    """

    scales: Value
    a_scale: float
    low: int
    high: int

    @property
    def middle(self) -> int:
        """Number that the kernel subtracts from quantized elements of A, so that they fit int8."""
        return self.low + 128

    @property
    def about(self) -> str:
        return f"{self.a_scale!r}:{self.middle}:{self.scales.name}:{super().about}"

    def scale_columns(self, columns: Array) -> None:
        scales = self.scales.numbers
        assert scales is not None
        columns[0] *= self.middle
        with np.errstate(over="ignore"):  # a file may contain any scale
            columns[2] = (scales * np.float32(self.a_scale)).view(np.int32)


def unsigned(levels: Array) -> Array:
    """Returns 8-bit levels as uint8; int8 levels are shifted by 128, uint8 ones are unchanged."""
    return levels if levels.dtype == np.uint8 else levels.view(np.uint8) ^ _SIGN


def emit_bytes(product: GemmProblem, ctx: Lowering) -> list[Launch]:
    """Returns the launches of an int8 GEMM whose kernel quantizes A.

    Args:
        product: The GEMM, whose B is `ScaledInt8Weights`; A is float32 with contiguous rows.

    Raises:
        UnsupportedError: An operand of the epilogue is not float32, or has more than two batch
            axes.
    """
    product.epilogue.check_vectors()
    weights = product.weights
    assert isinstance(weights, ScaledInt8Weights)
    levels = {"scale": weights.a_scale, "low": float(weights.low), "high": float(weights.high)}
    return _emit(product, ctx, {}, levels)


def emit_integers(
    product: GemmProblem, zero: Value | Scratch | None, ctx: Lowering
) -> list[Launch]:
    """Returns the launches of a GEMM of 8-bit integers with an int32 result.

    Args:
        product: The GEMM, whose B is `Int8Weights`; A has contiguous rows of 8-bit integers.
        zero: Zero point of A; None for 0.

    Raises:
        UnsupportedError: The epilogue has more than two batch axes.
    """
    signed = product.dtype is DType.INT8
    defines = {"A_T": product.dtype.cl, "A_MIDDLE": 0 if signed else 128}
    return _emit(product, ctx, defines, optional(a_zero=zero))


def _emit(
    product: GemmProblem,
    ctx: Lowering,
    defines: Mapping[str, Define],
    levels: Mapping[str, Any],
) -> list[Launch]:
    """Returns the launches of an int8 GEMM.

    Args:
        product: The GEMM, whose B is `Int8Weights`.
        defines: Macros that depend on the dtype of A.
        levels: Kernel arguments by name that depend on the dtype of A: the parameters of its
            quantization if A is float32, its zero point if A has integers.
    """
    if product.is_empty:
        return []
    launches, product = merge(product, ctx)
    weights = product.weights
    assert isinstance(weights, Int8Weights)
    tunables = ctx.tunables(LEVELS)
    height, columns = partition(product.m, product.n, product.batches, ctx)
    groups = ceil_div(product.m, height) * ceil_div(product.n, columns) * product.batches
    macros = {
        **product.epilogue.defines,
        "T_VW": tunables["T_VW"],
        "S_N_WHOLE": int(is_whole(product, tunables["T_VW"])),
        "DOT_ISA": int(VNNI_INT8 in ctx.caps.matrix_shapes),
        "MOST_ROWS": MAX_ROWS,
        **defines,
    }
    if "a_zero" in levels:
        macros["A_ZERO"] = 1
    kernel = KernelSpec.of("matmul/gemm_bytes_cpu.cl", "gemm_bytes_cpu", **macros)
    records = ctx.scratch(groups * height * weights.depth, DType.UINT8)
    args = product.args | product.epilogue.args | weights.args(WIDTH) | {"records": records}
    args |= {"height": height, "columns": columns, **levels}
    return [*launches, launch(kernel, (groups,), (1,), product.flops, **args)]


def partition(m: int, n: int, batches: int, ctx: Lowering) -> tuple[int, int]:
    """Returns rows and columns of the result per work-group, so that all cores finish together.

    Args:
        m: Rows of each product.
        n: Columns of each product.
        batches: Number of products.
    """
    units = ctx.caps.compute_units
    target = ctx.thresholds(Int8Partition).groups * units
    tiles = MAX_ROWS // _TILE_ROWS
    share = balanced_share(m, ceil_div(n, WIDTH), batches, units, target, _TILE_ROWS, tiles)
    return share.rows, share.panels * WIDTH

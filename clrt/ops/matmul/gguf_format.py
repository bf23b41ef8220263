"""Weights in quantized GGUF blocks: their checks, and their packing for CPU and GPU kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.formats.gguf.block_type import BlockEncoding, BlockType, DecodedRows
from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array, IrOp, TensorType
from clrt.kernels.panel_layout import Panels
from clrt.kernels.quantized_panels_cpu import QuantizedPanels
from clrt.kernels.quantized_rows_gpu import PackedQuantizedRows, pack_fields, stored_bits
from clrt.kernels.spec import PackedWeight
from clrt.kernels.weight_format import WeightFormat
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import round_up


def quantised_type(name: str, op: IrOp) -> BlockType:
    """Returns the quantized GGUF block type named `name`, such as "Q4_K".

    Args:
        name: Name of the block type.
        op: Op, named in the message.

    Raises:
        ShapeError: GGUF has no quantized type of that name.
    """
    block_type = BLOCK_TYPES_BY_NAME.get(name)
    if block_type is None or block_type.coding is None:
        raise ShapeError(f"{op.name}: '{name}' is not a quantised GGUF type.")
    return block_type


def coding_of(block_type: BlockType) -> BlockEncoding:
    """Returns how a quantized block type encodes its elements; `block_type` must be quantized."""
    assert block_type.coding is not None
    return block_type.coding


def check_rows(op: IrOp, block_type: BlockType, raw: TensorType, n: int, k: int) -> None:
    """Checks that quantized weights are a constant uint8 `[n, bytes of k elements]`.

    Args:
        op: Op, named in the message.
        block_type: Block type of the weights.
        raw: Type of the weights.
        n: Number of rows.
        k: Elements per row.

    Raises:
        ShapeError: `raw` has another dtype or shape, `n` or `k` is less than 1, or `k` is not a
            multiple of the block size.
    """
    if min(k, n) < 1 or k % block_type.elements:
        raise ShapeError(
            f"{op.name}: K {k}, N {n}; expected K in whole blocks of {block_type.elements}."
        )
    wanted = (n, block_type.row_bytes(k))
    if raw.dtype is not DType.UINT8 or raw.known_elements is None or raw.shape != wanted:
        raise ShapeError(f"{op.name}: B is {raw}; expected a constant uint8 {list(wanted)}.")


@dataclass(frozen=True)
class GgufFormat(WeightFormat):
    """The weights B `[N, K]` of a product in rows of quantized GGUF blocks.

    Attributes:
        type: Block type; a quantized one.
        n: Number of rows N, the columns of the product.
        k: Elements of a row K, the summed axis of the product.
        raw: Constant uint8 `[n, bytes of a row]`.
    """

    type: BlockType
    n: int
    k: int
    raw: Value

    def panels(self) -> QuantizedPanels:
        type_, coding = self.type, coding_of(self.type)
        bits = 4 if coding.bits <= 4 else 8

        def rows(array: Array, first: int, end: int) -> DecodedRows:
            return type_.levels(array[first:end])

        sizes = (self.n, self.k, bits, coding.block, coding.zero)
        return QuantizedPanels(*sizes, type_.has_minima, False, self.raw, type_.name, rows, type_)

    def rows(self) -> PackedQuantizedRows:
        type_, coding = self.type, coding_of(self.type)
        minima, scale_bytes, whole = type_.has_minima, coding.scale_bytes, coding.scale_bytes == 1
        bits, high = stored_bits(coding.bits)
        dtype = {1: np.int8, 2: np.float16, 4: np.float32}[scale_bytes]

        def parts(array: Array, first: int, end: int) -> Iterator[Array]:
            rows = array[first:end]
            levels, halves = type_.whole_levels(rows) if whole else (type_.levels(rows), [])
            yield pack_fields(levels.levels & np.uint8((1 << bits) - 1), bits)
            if high:
                yield pack_fields(levels.levels >> np.uint8(bits), high)
            for numbers in (levels.scales, levels.minima)[: 1 + minima]:
                assert numbers is not None
                yield numbers.astype(dtype)
            yield from halves

        shared = type_.elements // coding.block if whole else 1
        sizes = (self.n, self.k, coding.block, bits, high, coding.zero, minima, scale_bytes, shared)
        return PackedQuantizedRows(self.raw, type_.name, *sizes, parts, type_)

    def floats(self, width: int | None) -> PackedWeight:
        """Returns B dequantized to float32 at load.

        Args:
            width: Columns of a panel; None for the plain layout `[n, k]`, in rows of B.
        """
        type_, name = self.type, f"float32_of_{self.type.name}:{self.n}x{self.k}"
        if width is None:
            return PackedWeight(self.raw, name, type_.dequantise, 4 * self.n * self.k)
        panels = Panels(self.k, self.n, width, transposed=True)

        def pack(array: Array) -> Array:
            return panels.pack(type_.dequantise(array))

        nbytes = 4 * self.k * round_up(self.n, width)
        return PackedWeight(self.raw, f"{name}:panels{width}", pack, nbytes)

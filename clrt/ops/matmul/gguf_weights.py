"""Constants in blocks of GGUF's types, for the ops that read them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.formats.gguf.block_types import (
    BLOCK_TYPES_BY_NAME,
    HALF_SCALES,
    SCALE_OFFSETS,
    BlockEncoding,
    BlockType,
    DecodedRows,
)
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array, IrOp, TensorType
from clrt.kernels.quantized_panels_cpu import QuantizedPanels
from clrt.kernels.quantized_rows_gpu import PackedQuantizedRows, pack_fields, stored_bits


def quantised_type(name: str, op: IrOp) -> BlockType:
    """The type of a name.

    Raises:
        ShapeError: There is no quantised type of that name.
    """
    found = BLOCK_TYPES_BY_NAME.get(name)
    if found is None or found.coding is None:
        raise ShapeError(f"{op.name}: '{name}' is no quantised type of GGUF.")
    return found


def coding_of(block_type: BlockType) -> BlockEncoding:
    """How elements of a quantised type are coded."""
    assert block_type.coding is not None
    return block_type.coding


def check_rows(op: IrOp, found: BlockType, raw: TensorType, n: int, k: int) -> None:
    """Checks a constant uint8 `[N, bytes of a row]`.

    Raises:
        ShapeError: It is none.
    """
    if min(k, n) < 1 or k % found.elements:
        raise ShapeError(
            f"{op.name}: K {k}, N {n}; expected K in whole blocks of {found.elements}."
        )
    wanted = (n, found.row_bytes(k))
    if raw.dtype is not DType.UINT8 or raw.known_elements is None or raw.shape != wanted:
        raise ShapeError(f"{op.name}: B is {raw}; expected a constant uint8 {list(wanted)}.")


def dot_weights(type_: str, n: int, k: int, raw: Value) -> QuantizedPanels:
    """Rows as the kernels of 8-bit dot products read them."""
    found = BLOCK_TYPES_BY_NAME[type_]
    coding = coding_of(found)
    bits = 4 if coding.bits <= 4 else 8

    def rows(array: Array, first: int, end: int) -> DecodedRows:
        return found.levels(array[first:end])

    sizes = (n, k, bits, coding.block, coding.zero)
    return QuantizedPanels(*sizes, found.has_minima, False, raw, type_, rows, found)


def level_rows(type_: str, n: int, k: int, raw: Value) -> PackedQuantizedRows:
    """Rows as the kernels of GPUs read them: nothing is rounded."""
    found = BLOCK_TYPES_BY_NAME[type_]
    coding, minima = coding_of(found), found.has_minima
    (bits, high), whole = stored_bits(coding.bits), type_ in SCALE_OFFSETS
    scale_bytes = 1 if whole else 2 if type_ in HALF_SCALES else 4
    dtype = {1: np.int8, 2: np.float16, 4: np.float32}[scale_bytes]

    def parts(array: Array, first: int, end: int) -> Iterator[Array]:
        rows = array[first:end]
        levels, halves = found.whole_levels(rows) if whole else (found.levels(rows), [])
        yield pack_fields(levels.levels & np.uint8((1 << bits) - 1), bits)
        if high:
            yield pack_fields(levels.levels >> np.uint8(bits), high)
        for numbers in (levels.scales, levels.minima)[: 1 + minima]:
            assert numbers is not None
            yield numbers.astype(dtype)
        yield from halves

    shared = found.elements // coding.block if whole else 1
    sizes = (n, k, coding.block, bits, high, coding.zero, minima, scale_bytes, shared)
    return PackedQuantizedRows(raw, type_, *sizes, parts, found)

"""`BlockType`: sizes and encoding of a tensor type of GGUF, with decoders for host and device.

A row is a whole number of blocks. In quantized types an element is
`(level - zero) * scale - minimum`, with a scale, and in some types a minimum, per sub-block of 16
or 32 elements. Levels of types with a table or a codebook are the values in it.

Source: llama.cpp, ggml/src/ggml-common.h and ggml.c (`type_traits`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clrt.ir.cl_code import Code
from clrt.util.fast_dataclass import dataclass

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

SIGNED = 128
"""Level that means 0 in types with int8 levels, or table values: stored as uint8 shifted by 128."""
SIGNED_FIVE_BITS = 16
"""Level that means 0 in types with levels from -15 to 15."""
# Bytes of the float16 number 1.
_ONE = np.array([1], "<f2").view(np.uint8)
_FACTOR, _NONE = Code("1"), Code("0")
# Elements decoded at a time, so that intermediate arrays stay in the caches.
_CHUNK_ELEMS = 1 << 18


class Unpacked(NamedTuple):
    """Decoded blocks: levels, with scales and minima per sub-block.

    Attributes:
        levels: uint8 [blocks, elements].
        scales: float32 [blocks, sub-blocks].
        minima: float32 [blocks, sub-blocks]; None if the type has none.
    """

    levels: Bytes
    scales: Floats
    minima: Floats | None = None


@dataclass(frozen=True)
class DecodedRows:
    """Decoded rows of a quantized tensor: value = (level - zero) * scale - minimum.

    Attributes:
        bits: Bits per level: 2, 3, 4, 5, 6 or 8.
        block: Number of consecutive elements that share a scale: 16 or 32.
        levels: uint8 [rows, cols].
        scales: float32 [rows, cols / block].
        minima: float32 [rows, cols / block]; None if the type has none.
        zero: Level that means 0.

    Numerics:
        The formula in float32, in this order, equals `BlockType.dequantise` bit by bit.
    """

    bits: int
    block: int
    levels: Bytes
    scales: Floats
    minima: Floats | None
    zero: int


@dataclass(frozen=True)
class BlockReader:
    """OpenCL C expressions that decode a block, for kernels that pack weights.

    Names in the expressions are x (the block), part (index of a sub-block), i (index of four
    elements in the sub-block), and functions and macros of kernels_cl/common/gguf_blocks.clh.

    Attributes:
        levels: Levels 4 i to 4 i + 3 of the sub-block, as the four bytes of a uint.
        scale: Integer scale of the sub-block. Kernels multiply it by the first float16 factor of
            the block (`BlockEncoding.factors`).
        minimum: Integer minimum of the sub-block. Kernels multiply it by the last float16 factor of
            the block. Unused for a type without minima.
    """

    levels: Code
    scale: Code = _FACTOR
    minimum: Code = _NONE


@dataclass(frozen=True)
class BlockEncoding:
    """Encoding of a quantized type's elements.

    Attributes:
        bits: Bits per level.
        block: Number of consecutive elements that share a scale: 16 or 32.
        zero: Level that means 0.
        unpack: Decodes blocks, uint8 [blocks, bytes per block].
        scale_bytes: Size of an exact scale or minimum: 4 (float32), 2 (float16), or 1 (an 8-bit
            integer, to be multiplied by one of `factors`).
        factors: Byte offsets in a block of one or two float16 numbers: the factor of the scales,
            then the factor of the minima. () if the type has none; needed if `scale_bytes` is 1,
            and by `reader`.
        reader: Decodes blocks on the device; None if only the host can decode them.
        restorable: Whether blocks can be restored from the packed weights of CPU kernels, so that
            compiled models need not store the blocks. The bytes of such a block are its factors,
            then the levels. Levels have 8 bits; or 4 bits, with levels of the block's second half
            in the high bits of a byte.
    """

    bits: int
    block: int
    zero: int
    unpack: Callable[[Bytes], Unpacked]
    scale_bytes: int = 4
    factors: tuple[int, ...] = ()
    reader: BlockReader | None = None
    restorable: bool = False

    @property
    def has_minima(self) -> bool:
        """Whether decoded rows have minima: a type has them exactly if `zero` is 0."""
        return self.zero == 0


@dataclass(frozen=True)
class BlockType:
    """A tensor type of GGUF.

    Attributes:
        name: Name as in llama.cpp, such as "Q4_K".
        code: Type number in files.
        elements: Elements per block; 1 for plain dtypes.
        nbytes: Bytes per block.
        dtype: NumPy dtype of a plain type; None for quantized types.
        coding: Encoding of a quantized type; None for plain dtypes.
    """

    name: str
    code: int
    elements: int
    nbytes: int
    dtype: np.dtype[Any] | None = None
    coding: BlockEncoding | None = None

    @classmethod
    def coded(
        cls, name: str, code: int, elements: int, nbytes: int, *coding: Any, **options: Any
    ) -> BlockType:
        """Returns a quantized type, from a row of a table.

        Args:
            name: Name as in llama.cpp.
            code: Type number in files.
            elements: Elements per block.
            nbytes: Bytes per block.
            coding: First attributes of the type's `BlockEncoding`, in order.
            options: Other attributes of the type's `BlockEncoding`, by name.
        """
        return cls(name, code, elements, nbytes, None, BlockEncoding(*coding, **options))

    @classmethod
    def plain(cls, name: str, code: int, dtype: Any) -> BlockType:
        """Returns the type of unquantized tensors.

        Args:
            name: Name as in llama.cpp.
            code: Type number in files.
            dtype: NumPy dtype of the elements.
        """
        numpy_dtype = np.dtype(dtype)
        return cls(name, code, 1, numpy_dtype.itemsize, numpy_dtype)

    def row_bytes(self, cols: int) -> int:
        """Returns the bytes of an encoded row.

        Args:
            cols: Elements of the row; a multiple of `elements`.
        """
        return cols // self.elements * self.nbytes

    def dequantise(self, raw: Bytes) -> Floats:
        """Decodes rows to float32; plain integers and F64 are rounded.

        Args:
            raw: uint8 [..., bytes per row].

        Returns:
            float32 [..., cols]; a view of `raw` for aligned F32.
        """
        raw = np.ascontiguousarray(raw)
        if self.dtype is not None:
            return np.require(raw.view(self.dtype), requirements="A").astype(np.float32, copy=False)
        cols = raw.shape[-1] // self.nbytes * self.elements
        result = np.empty((*raw.shape[:-1], cols), np.float32)
        blocks, values = raw.reshape(-1, self.nbytes), result.reshape(-1, self.elements)
        for chunk in self._chunks(len(blocks)):
            self._evaluate(blocks[chunk], values[chunk])
        return result

    def _evaluate(self, blocks: Bytes, out: Floats) -> None:
        """Decodes blocks to floats.

        Args:
            blocks: uint8 [blocks, bytes per block].
            out: Destination, float32 [blocks, elements].
        """
        coding = self.coding
        assert coding is not None
        with np.errstate(invalid="ignore", over="ignore"):  # a file may contain any scale
            levels, scales, minima = coding.unpack(blocks)
            np.subtract(levels, np.float32(coding.zero), out=out, dtype=np.float32)
            sub_blocks = out.reshape(*scales.shape, -1)
            sub_blocks *= scales[..., None]
            if minima is not None:
                sub_blocks -= minima[..., None]

    @property
    def has_minima(self) -> bool:
        """Whether blocks of this type store minima."""
        return self.coding is not None and self.coding.has_minima

    def levels(self, raw: Bytes) -> DecodedRows:
        """Decodes rows to levels, scales and minima.

        Args:
            raw: uint8 [rows, bytes per row].

        Raises:
            ValueError: The type is a plain dtype.
        """
        coding = self.coding
        if coding is None:
            raise ValueError(f"{self.name} holds plain numbers and has no levels")
        raw = np.ascontiguousarray(raw)
        blocks = raw.reshape(-1, self.nbytes)
        levels = np.empty((len(blocks), self.elements), np.uint8)
        scales = np.empty((len(blocks), self.elements // coding.block), np.float32)
        minima = np.empty_like(scales) if coding.has_minima else None
        for chunk in self._chunks(len(blocks)):
            with np.errstate(invalid="ignore", over="ignore"):
                unpacked = coding.unpack(blocks[chunk])
            levels[chunk] = unpacked.levels
            _repeat(unpacked.scales, scales[chunk])
            if minima is not None and unpacked.minima is not None:
                _repeat(unpacked.minima, minima[chunk])
        rows, cols = len(raw), raw.shape[1] // self.nbytes * self.elements
        sub_blocks = rows, cols // coding.block
        return DecodedRows(
            coding.bits,
            coding.block,
            levels.reshape(rows, cols),
            scales.reshape(sub_blocks),
            None if minima is None else minima.reshape(sub_blocks),
            coding.zero,
        )

    def whole_levels(self, raw: Bytes) -> tuple[DecodedRows, list[Bytes]]:
        """Decodes rows to levels and integer scales, without the float16 factors of the scales.

        Only for types with 8-bit integer scales (`scale_bytes` 1).

        Args:
            raw: uint8 [rows, bytes per row].

        Returns:
            The decoded rows, in which scales and minima are integers; and the float16 factors of
            scales, then of minima if the type has any, each as bytes, uint8 [rows, 2 * blocks].
        """
        assert self.coding is not None
        blocks = np.array(raw).reshape(-1, self.nbytes)
        halves = []
        for at in self.coding.factors:
            halves.append(np.array(blocks[:, at : at + 2]).reshape(len(raw), -1))
            blocks[:, at : at + 2] = _ONE
        return self.levels(blocks.reshape(raw.shape)), halves

    def _chunks(self, blocks: int) -> Iterator[slice]:
        """Yields slices that divide a range of blocks, each of about _CHUNK_ELEMS elements.

        Args:
            blocks: Number of blocks.
        """
        step = _CHUNK_ELEMS // self.elements
        return (slice(at, at + step) for at in range(0, blocks, step))


def _repeat(numbers: Floats, out: Floats) -> None:
    """Copies one number per sub-block to all elements of the sub-block.

    Args:
        numbers: [blocks, sub-blocks].
        out: Destination, [blocks, elements].
    """
    out.reshape(*numbers.shape, -1)[:] = numbers[..., None]

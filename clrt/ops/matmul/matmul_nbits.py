"""MatMulNBits: a matrix product with 2, 4 or 8-bit weights, quantized in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, UnsupportedError, counted
from clrt.formats.gguf.block_type import DecodedRows
from clrt.ir.dims import provably_different
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.kernels import gemm_variants
from clrt.kernels.block_quantized import BlockQuantizedWeights
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.gemm_gpu import GPU_TILES
from clrt.kernels.quantized_panels_cpu import QuantizedPanels, fits_half, rounded_rows
from clrt.kernels.quantized_rows_gpu import PackedQuantizedRows, pack_fields
from clrt.kernels.spec import Launch
from clrt.kernels.variant import Emit, Lowering, Variant, reject_but_float32
from clrt.kernels.weight_format import WeightFormat
from clrt.ops.base import Accuracy, Decompose, OnnxNode, Op, Types
from clrt.ops.checks import known, need
from clrt.ops.epilogue import after_bias, fused_reference, fused_type
from clrt.ops.matmul.quantized_product import (
    QuantizedProduct,
    emit_panels,
    emit_rows,
    exact,
    packed_product,
    rounded,
)
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up

DOT_BLOCK = 32
"""Elements of K in a block of the 8-bit dot product kernels."""
# Value of `accuracy_level` that allows to round A to 8 bits.
_INT8 = 4


def unpack_levels(packed: Array, bits: int) -> Array:
    """Unpacks bytes `[…, n]` to codes of `bits` bits, as uint8 `[…, n * 8 / bits]`.

    The code in the low-order bits of a byte comes first.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(*packed.shape[:-1], -1))


@dataclass(frozen=True)
class NBitsFormat(WeightFormat):
    """The quantized weights B of a MatMulNBits node, which kernels read in several layouts.

    Attributes:
        op: Op of the node, with the sizes of B.
        levels: Constant with the packed codes.
        scales: Constant with the scales.
        zeros: Constant with the zero points; None if all are `op.middle`.
    """

    op: MatMulNBits
    levels: Value
    scales: Value
    zeros: Value | None

    @property
    def zero(self) -> int:
        """Code that stands for weight 0; it is 0 if kernels subtract zero points as minima."""
        return self.op.middle if self.zeros is None else 0

    @property
    def name(self) -> str:
        """Names of the scales and zero points, which distinguish packed weights of equal codes."""
        return f"{self.scales.name}:{self.zeros.name if self.zeros is not None else ''}"

    def zero_points(self, rows: slice = slice(None)) -> Array | None:
        """Returns zero points as float32 `[rows, blocks]`; None if the node has none.

        Args:
            rows: Rows of B; all by default.
        """
        numbers = None if self.zeros is None else self.zeros.numbers
        return None if numbers is None else self.op.zero_points(numbers, rows)

    def panels(self) -> QuantizedPanels:
        op, numbers = self.op, self.scales.numbers
        assert numbers is not None
        by_block, zeros = op.by_dots(op.scales(numbers)), self.zero_points()
        minima = None if zeros is None else by_block * op.by_dots(zeros)

        def rows(packed: Array, first: int, end: int) -> DecodedRows:
            levels = unpack_levels(packed.reshape(op.N, -1)[first:end], op.bits)[:, : op.K]
            subtracted = None if minima is None else minima[first:end]
            scales = by_block[first:end]
            return DecodedRows(op.bits, DOT_BLOCK, levels, scales, subtracted, self.zero)

        wide = not all(x is None or fits_half(x) for x in (by_block, minima))
        sizes = (op.N, op.K, max(op.bits, 4), DOT_BLOCK, self.zero, self.zeros is not None)
        return QuantizedPanels(*sizes, wide, self.levels, self.name, rows)

    def rows(self) -> PackedQuantizedRows:
        op, is_half = self.op, self.zeros is None and self.scales.dtype is DType.FLOAT16
        dtype = np.dtype(np.float16 if is_half else np.float32)

        def parts(packed: Array, first: int, end: int) -> Iterator[Array]:
            rows = slice(first, end)
            yield packed.reshape(op.N, op.lines)[rows]
            assert self.scales.numbers is not None
            by_block, zeros = op.scales(self.scales.numbers, rows), self.zero_points(rows)
            yield by_block.astype(dtype)
            if zeros is not None:
                yield by_block * zeros

        sizes = (op.N, op.K, op.block_size, op.bits, 0, self.zero, self.zeros is not None)
        return PackedQuantizedRows(self.levels, self.name, *sizes, dtype.itemsize, 1, parts)

    def blocks(self) -> BlockQuantizedWeights:
        """Returns the codes, scales and zero points of B for kernels that compute with floats."""
        op = self.op

        def pair(array: Array) -> Array:
            scales, zeros = op.scales(array), self.zero_points()
            middle = np.full_like(scales, op.middle)
            return np.stack([scales, middle if zeros is None else zeros], axis=-1)

        constants = (self.levels, self.scales, self.zeros)
        return BlockQuantizedWeights(op.N, op.K, op.bits, op.block_size, *constants, pair)


def _emit_blocks(emit: gemm_variants.EmitProduct) -> Emit:
    def emit_node(node: Node, ctx: Lowering) -> list[Launch]:
        return emit(packed_product(node, node.op_as(MatMulNBits).weight_format(node).blocks()), ctx)

    return emit_node


def _reject_rows(node: Node, caps: DeviceCaps) -> str | None:
    op = node.op_as(MatMulNBits)
    if op.block_size * op.bits % 32:
        return "for blocks of whole words of 32 bits"
    return reject_but_float32(node, caps)


@register
@dataclass(frozen=True)
class MatMulNBits(QuantizedProduct):
    """A times B^T with `bits`-bit weights (code - zero point) * scale, quantized in blocks of K.

    Inputs: A `[…, K]`; B `[N, blocks, block_size * bits / 8]`, where a byte holds 8 / bits codes
    along K, the first in the low-order bits; scales `[N, blocks]`; optional zero points; None for
    g_idx, since the importer decomposes nodes with it; optional bias `[N]`; then the extras,
    tensors that `steps` read. B, scales and zero points are constants. Zero points are in A's dtype
    with the shape of the scales, or packed like B along the blocks, `[N, ceil(blocks * bits / 8)]`;
    by default all are 2^(bits - 1).

    Attributes:
        K: Columns of A and of B, the summed axis.
        N: Rows of B, the columns of the result.
        bits: Bits of a code: 2, 4 or 8.
        block_size: Elements of K that share a scale and a zero point.
        accuracy_level: 4 allows kernels to round A to 8 bits, by blocks of K.
        a_bits: clrt-specific: 8 if A is rounded to 8 bits, else 0; see QuantizedMatMul.
        steps: clrt-specific: epilogue over the biased product (operand 0) and the extras (1, …), as
            in FusedMatMul.

    Numerics: as MatMul, except for the rounding of A if `a_bits` is 8.

    Source: com.microsoft MatMulNBits 1.
    """

    K: int = 0
    N: int = 0
    bits: int = 4
    block_size: int = 32
    accuracy_level: int = 0
    a_bits: int = 0
    steps: tuple[ElementwiseInstruction, ...] = ()

    domain = "com.microsoft"
    accuracy = Accuracy.ACCUMULATED
    input_traits = InputTraits(plan_time=(1, 2, 3))
    # Epilogue operands may be overwritten, for the reason given at FusedMatMul.
    memory_traits = MemoryTraits(inplace_inputs=tuple(range(5, 64)))
    num_fixed_inputs = 6
    variants = (
        Variant("gemm_levels_cpu", emit_panels, rounded(gemm_variants.reject_levels), requires.CPU),
        Variant(
            "gemm_blocks_cpu",
            _emit_blocks(gemm_variants.emit_blocks_cpu),
            exact(reject_but_float32),
            requires.CPU,
        ),
        Variant("gemm_gpu", emit_rows, exact(_reject_rows), GPU_TILES),
        Variant(
            "gemm_any",
            _emit_blocks(gemm_variants.emit_any),
            exact(gemm_variants.reject_any),
            speed=PlainEfficiency,
        ),
    )

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        if node.attrs.get("weight_prepacked", 0):
            raise UnsupportedError(f"{cls.name}: weights packed for a GPU of one kind")
        if node.attrs.get("bits", 4) not in (2, 4, 8):
            raise UnsupportedError(f"{cls.name}: {node.attrs['bits']} bits; expected 2, 4 or 8.")
        if len(node.inputs) > 4 and node.inputs[4]:
            raise Decompose
        return super().from_onnx(node)

    @property
    def middle(self) -> int:
        """Zero point of all blocks if the node has no zero points: 2^(bits - 1)."""
        return 1 << (self.bits - 1)

    @property
    def blocks(self) -> int:
        """Number of quantization blocks along K."""
        return ceil_div(self.K, self.block_size)

    @property
    def lines(self) -> int:
        """Bytes of the packed codes of one row of B."""
        return self.blocks * self.block_size * self.bits // 8

    def program(self, inputs: Types) -> tuple[ElementwiseInstruction, ...]:
        if len(inputs) <= 5 or inputs[5] is None:
            return self.steps
        return after_bias(self.steps, len(inputs) - self.num_fixed_inputs)

    def extras(self, node: Node) -> list[Value]:
        return [v for v in node.inputs[5:] if v is not None]

    def product_type(self, inputs: Types) -> TensorType:
        a = need(inputs, 0, self)
        if (
            self.bits not in (2, 4, 8)
            or min(self.K, self.N, self.block_size) < 1
            or (self.block_size * self.bits % 8)
        ):
            raise ShapeError(
                f"{self.name}: K {self.K}, N {self.N}, bits {self.bits} and block_size "
                f"{self.block_size}; expected 2, 4 or 8 bits, and blocks of whole bytes."
            )
        need(inputs, 1, self), need(inputs, 2, self)
        weights, scales = known(inputs, 1, self), known(inputs, 2, self)
        assert weights is not None and scales is not None
        zero = known(inputs, 3, self)
        if weights.dtype != np.uint8:
            raise ShapeError(f"{self.name}: B is {weights.dtype}; expected uint8.")
        if weights.size != self.N * self.lines or scales.size != self.N * self.blocks:
            raise ShapeError(
                f"{self.name}: B {weights.shape} and scales {scales.shape} do not match {self}."
            )
        packed = self.N * ceil_div(self.blocks * self.bits, 8)
        if zero is not None and zero.size != (packed if zero.dtype == np.uint8 else scales.size):
            raise ShapeError(f"{self.name}: zero points {zero.shape} do not match {self}.")
        if a.shape is None:
            return TensorType(a.dtype, None)
        if not a.shape or provably_different(a.shape[-1], self.K):
            raise ShapeError(f"{self.name}: A {a} does not have {counted(self.K, 'column')}.")
        return TensorType(a.dtype, (*a.shape[:-1], self.N))

    def infer(self, inputs: Types) -> list[TensorType]:
        extras = [t for t in inputs[5:] if t is not None]
        return [fused_type(self, self.program(inputs), self.product_type(inputs), extras)]

    def reject_rounding(self) -> str | None:
        if self.accuracy_level != _INT8:
            return "accuracy_level does not allow A in 8 bits"
        if self.bits not in (4, 8) or self.block_size % DOT_BLOCK:
            return f"for 4 or 8 bits, and blocks of {DOT_BLOCK} or multiples"
        return None

    def weight_format(self, node: Node) -> NBitsFormat:
        return NBitsFormat(self, node.arg(1), node.arg(2), node.input(3))

    def levels(self, packed: Array, count: int) -> Array:
        """Unpacks bytes to codes, uint8 `[rows of B, count]`.

        Args:
            packed: uint8 with packed codes for each row of B, such as input B.
            count: Codes to return per row; the padding behind them is dropped.
        """
        return unpack_levels(packed.reshape(self.N, -1), self.bits)[:, :count]

    def packed(self, levels: Array) -> Array:
        """Packs codes to the bytes of input B; each row is zero-padded to whole blocks.

        Args:
            levels: Codes, uint8 `[rows of B, elements of a row]`.
        """
        padded = np.zeros((self.N, self.blocks * self.block_size), np.uint8)
        padded[:, : self.K] = levels
        return pack_fields(padded, self.bits).reshape(self.N, self.blocks, -1)

    def packed_zeros(self, zeros: Array) -> Array:
        """Packs zero points to the bytes of input 3, with 8 / bits zero points per byte.

        Args:
            zeros: Zero points, uint8 `[rows of B, blocks]`.
        """
        padded = np.zeros((self.N, round_up(self.blocks, 8 // self.bits)), np.uint8)
        padded[:, : self.blocks] = zeros
        return pack_fields(padded, self.bits)

    def by_dots(self, numbers: Array) -> Array:
        """Repeats values per block, so that every DOT_BLOCK elements of a row of B have a value.

        Args:
            numbers: A value per block, `[rows of B, blocks]`.
        """
        repeated = np.repeat(numbers, self.block_size // DOT_BLOCK, axis=1)
        return np.asarray(repeated[:, : ceil_div(self.K, DOT_BLOCK)])

    def scales(self, scales: Array, rows: slice = slice(None)) -> Array:
        """Returns scales as float32 `[rows, blocks]`.

        Args:
            scales: Input 2, with a scale per row of B and block.
            rows: Rows of B to return.
        """
        return scales.reshape(self.N, self.blocks)[rows].astype(np.float32)

    def zero_points(self, zero: Array, rows: slice = slice(None)) -> Array:
        """Returns zero points as float32 `[rows, blocks]`.

        Args:
            zero: Input 3: packed uint8, or numbers in the shape of the scales.
            rows: Rows of B to return.
        """
        if zero.dtype != np.uint8:
            return self.scales(zero, rows)
        packed = zero.reshape(self.N, -1)[rows]
        return unpack_levels(packed, self.bits)[:, : self.blocks].astype(np.float32)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, weights, scales, zero = (*inputs, None)[:4]
        assert a is not None and weights is not None and scales is not None
        block = np.arange(self.K) // self.block_size
        zeros = np.float32(self.middle) if zero is None else self.zero_points(zero)[:, block]
        dequantised = (self.levels(weights, self.K) - zeros) * self.scales(scales)[:, block]
        if self.a_bits:
            a = rounded_rows(a, DOT_BLOCK)
        product = (a.astype(np.float64) @ dequantised.T.astype(np.float64)).astype(a.dtype)
        types = [None if x is None else TensorType(DType.of(x.dtype), x.shape) for x in inputs]
        extras = [x for x in inputs[5:] if x is not None]
        return (fused_reference(self.program(types), product, extras),)

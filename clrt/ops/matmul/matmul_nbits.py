"""MatMulNBits: a matrix product with 2, 4 or 8-bit weights, quantized by blocks of K."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, UnsupportedError, counted
from clrt.formats.gguf.block_types import DecodedRows
from clrt.ir.dims import provably_different
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, ElementwiseStep, TensorType
from clrt.kernels import gemm_variants
from clrt.kernels.block_quantized import BlockQuantizedWeights
from clrt.kernels.cost import PLAIN
from clrt.kernels.gemm_gpu import GPU_TILES, emit_gpu
from clrt.kernels.gemm_problem import GemmProblem, MatrixOperand
from clrt.kernels.quantized_panels_cpu import QuantizedPanels, fits_half, rounded_rows
from clrt.kernels.quantized_rows_gpu import PackedQuantizedRows
from clrt.kernels.spec import BufferArg, Launch
from clrt.kernels.strided import contiguous_strides
from clrt.kernels.variant import Emit, Lowering, RejectReason, Variant, reject_but_float32
from clrt.ops.base import Accuracy, Decompose, OnnxNode, Op, Types
from clrt.ops.checks import known, need
from clrt.ops.epilogue import EpilogueOp, after_bias, fused_reference, fused_type
from clrt.ops.matmul.matmul import MatrixProduct, epilogue_operand, make_epilogue
from clrt.ops.pointwise.fused import compute_type
from clrt.ops.registry import register
from clrt.util.math import ceil_div, round_up

DOT_BLOCK = 32
"""Elements of K in a block of the 8-bit dot product kernels."""


def unpack_levels(packed: Array, bits: int) -> Array:
    """Unpacks bytes `[…, n]` to codes of `bits` bits, as uint8 `[…, n * 8 / bits]`.

    The code in the low-order bits of a byte comes first.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(*packed.shape[:-1], -1))


def _lowered(emit: gemm_variants.EmitProduct) -> Emit:
    return lambda node, ctx: emit(_product(node), ctx)


def _reject_levels(node: Node, caps: DeviceCaps) -> str | None:
    return _rounds(node, True) or gemm_variants.reject_levels(node, caps)


def _rounds(node: Node, wanted: bool) -> str | None:
    op = node.op
    assert isinstance(op, MatMulNBits)
    return None if bool(op.a_bits) is wanted else f"for A {'' if wanted else 'not '}in 8 bits"


def _exact(reject: RejectReason) -> RejectReason:
    return lambda node, caps: _rounds(node, False) or reject(node, caps)


def levels_product(node: Node) -> GemmProblem:
    """Lowers a MatMulNBits node to a GEMM with B packed for the 8-bit dot product kernel."""
    op, scales, zero = node.op, node.arg(2), node.input(3)
    assert isinstance(op, MatMulNBits) and scales.numbers is not None
    numbers = None if zero is None else zero.numbers
    by_block = op.by_dots(op.scales(scales.numbers))
    minima = None
    if numbers is not None:
        minima = by_block * op.by_dots(op.zero_points(numbers))

    def rows(packed: Array, first: int, end: int) -> DecodedRows:
        levels = unpack_levels(packed.reshape(op.N, -1)[first:end], op.bits)[:, : op.K]
        subtracted = None if minima is None else minima[first:end]
        return DecodedRows(op.bits, DOT_BLOCK, levels, by_block[first:end], subtracted, middle)

    middle = op.middle if zero is None else 0
    wide = not all(x is None or fits_half(x) for x in (by_block, minima))
    names = f"{scales.name}:{zero.name if zero is not None else ''}"
    sizes = (op.N, op.K, max(op.bits, 4), DOT_BLOCK, middle)
    weights = QuantizedPanels(*sizes, zero is not None, wide, node.arg(1), names, rows)
    return replace(_product(node), levels=weights)


def _emit_levels(node: Node, ctx: Lowering) -> list[Launch]:
    return gemm_variants.emit_levels_cpu(levels_product(node), ctx)


def _reject_rows(node: Node, caps: DeviceCaps) -> str | None:
    op = node.op
    assert isinstance(op, MatMulNBits)
    if op.block_size * op.bits % 32:
        return "for blocks of whole words of 32 bits"
    return reject_but_float32(node, caps)


def _emit_rows(node: Node, ctx: Lowering) -> list[Launch]:
    """Emits the GPU kernel of MatMulNBits; codes, scales and minima of B are packed by rows."""
    op, raw, scales, zero = node.op, node.arg(1), node.arg(2), node.input(3)
    assert isinstance(op, MatMulNBits)
    dtype = np.float16 if zero is None and scales.dtype is DType.FLOAT16 else np.float32

    def parts(packed: Array, first: int, end: int) -> Iterator[Array]:
        rows = slice(first, end)
        yield packed.reshape(op.N, op.lines)[rows]
        assert scales.numbers is not None
        by_block = op.scales(scales.numbers, rows)
        yield by_block.astype(dtype)
        if zero is not None and zero.numbers is not None:
            yield by_block * op.zero_points(zero.numbers, rows)

    middle = op.middle if zero is None else 0
    sizes = (op.N, op.K, op.block_size, op.bits, 0, middle, zero is not None)
    scale_bytes, names = np.dtype(dtype).itemsize, f"{scales.name}:{zero.name if zero else ''}"
    levels = PackedQuantizedRows(raw, names, *sizes, scale_bytes, 1, parts)
    return emit_gpu(replace(_product(node), level_rows=levels), ctx)


def _product(node: Node) -> GemmProblem:
    op, a, y, zero = node.op, node.arg(0), node.output, node.input(3)
    assert isinstance(op, MatMulNBits)

    def pair(array: Array) -> Array:
        scales = op.scales(array)
        numbers = None if zero is None else zero.numbers
        middle = np.full_like(scales, op.middle)
        return np.stack([scales, middle if numbers is None else op.zero_points(numbers)], axis=-1)

    blocks = BlockQuantizedWeights(op.bits, op.block_size, node.arg(1), node.arg(2), zero, pair)
    rows = a.dims[:-1] or (1,)
    full = (*rows, op.N)
    strides = contiguous_strides((*rows, op.K))
    missing = (len(a.dims) == 1, False)
    operands = [epilogue_operand(value, y, full, missing) for value in op.extras(node)]
    return GemmProblem(
        y,
        a.dtype,
        rows[:-1],
        rows[-1],
        op.N,
        op.K,
        MatrixOperand(BufferArg(a), strides),
        MatrixOperand(BufferArg(blocks.levels), (*(0 for _ in rows[:-1]), op.N, 1)),
        make_epilogue(op.program(node.input_types), a.dtype, operands),
        compute_type(a.dtype),
        blocks=blocks,
    )


@register
@dataclass(frozen=True)
class MatMulNBits(MatrixProduct, EpilogueOp):
    """A times B^T with `bits`-bit weights (code - zero point) * scale, quantized by blocks of K.

    Inputs: A `[…, K]`; B `[N, blocks, block_size * bits / 8]`, where a byte holds 8 / bits codes
    along K, the first in the low-order bits; scales `[N, blocks]`; optionally zero points, either
    in A's dtype with the shape of the scales or packed like B along the blocks
    `[N, ceil(blocks * bits / 8)]` (default: 2^(bits - 1)); g_idx, which the importer expands; bias
    `[N]`; then the extras of `steps`. B, scales and zero points are constants.

    Attributes:
        accuracy_level: 4 allows kernels to round A to 8 bits, by blocks of K.
        a_bits: clrt-specific: 8 if A is rounded to 8 bits, else 0; see QuantizedMatMul.
        steps: clrt-specific: epilogue over the biased product (operand 0) and the extras (1, …),
            as in FusedMatMul.

    Numerics: as MatMul, except for the rounding of A if `a_bits` is 8.
    Source: com.microsoft MatMulNBits 1.
    """

    K: int = 0
    N: int = 0
    bits: int = 4
    block_size: int = 32
    accuracy_level: int = 0
    a_bits: int = 0
    steps: tuple[ElementwiseStep, ...] = ()

    domain = "com.microsoft"
    accuracy = Accuracy.ACCUMULATED
    plan_time_inputs = (1, 2, 3)
    # See FusedMatMul.
    inplace_inputs = tuple(range(5, 64))
    num_fixed_inputs = 6
    variants = (
        Variant(
            "gemm_levels_cpu",
            _emit_levels,
            _reject_levels,
            requires.CPU,
        ),
        Variant(
            "gemm_blocks_cpu",
            _lowered(gemm_variants.emit_blocks_cpu),
            _exact(reject_but_float32),
            requires.CPU,
        ),
        Variant("gemm_gpu", _emit_rows, _exact(_reject_rows), GPU_TILES),
        Variant(
            "gemm_any",
            _lowered(gemm_variants.emit_any),
            _exact(gemm_variants.reject_any),
            speed=PLAIN,
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
        """Bytes of the packed codes of one of the N rows of B."""
        return self.blocks * self.block_size * self.bits // 8

    def program(self, inputs: Types) -> tuple[ElementwiseStep, ...]:
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
                f"{self.name}: B {weights.shape} and scales {scales.shape} do not fit {self}."
            )
        packed = self.N * ceil_div(self.blocks * self.bits, 8)
        if zero is not None and zero.size != (packed if zero.dtype == np.uint8 else scales.size):
            raise ShapeError(f"{self.name}: zero points {zero.shape} do not fit {self}.")
        if a.shape is None:
            return TensorType(a.dtype, None)
        if not a.shape or provably_different(a.shape[-1], self.K):
            raise ShapeError(f"{self.name}: A {a} does not have {counted(self.K, 'column')}.")
        return TensorType(a.dtype, (*a.shape[:-1], self.N))

    def infer(self, inputs: Types) -> list[TensorType]:
        extras = [t for t in inputs[5:] if t is not None]
        return [fused_type(self, self.program(inputs), self.product_type(inputs), extras)]

    def flops(self, inputs: Types, outputs: Types) -> int:
        a = need(inputs, 0, self).shape
        assert a is not None
        return 2 * prod(int(d) for d in a) * self.N

    def levels(self, packed: Array, count: int) -> Array:
        """Unpacks bytes to codes, uint8 `[N, count]`.

        Args:
            packed: uint8 with N rows of packed codes, such as input B.
            count: Codes to return per row; the padding behind them is dropped.
        """
        return unpack_levels(packed.reshape(self.N, -1), self.bits)[:, :count]

    def packed(self, levels: Array) -> Array:
        """Packs codes uint8 `[N, K]` to the bytes of input B, zero-padded behind K."""
        padded = np.zeros((self.N, self.blocks * self.block_size), np.uint8)
        padded[:, : self.K] = levels
        parts = padded.reshape(self.N, -1, 8 // self.bits)
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        lines = np.bitwise_or.reduce(parts << shifts, axis=-1)
        return np.asarray(lines.reshape(self.N, self.blocks, -1))

    def packed_zeros(self, zeros: Array) -> Array:
        """Packs zero points uint8 `[N, blocks]` to input 3, with 8 / bits zero points per byte."""
        per_byte = 8 // self.bits
        padded = np.zeros((self.N, round_up(self.blocks, per_byte)), np.uint8)
        padded[:, : self.blocks] = zeros
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        parts = padded.reshape(self.N, -1, per_byte) << shifts
        return np.asarray(np.bitwise_or.reduce(parts, axis=-1))

    def by_dots(self, numbers: Array) -> Array:
        """Repeats per-block values `[N, blocks]` to one for every DOT_BLOCK elements of K."""
        repeated = np.repeat(numbers, self.block_size // DOT_BLOCK, axis=1)
        return np.asarray(repeated[:, : ceil_div(self.K, DOT_BLOCK)])

    def scales(self, scales: Array, rows: slice = slice(None)) -> Array:
        """Returns scales as float32 `[rows, blocks]`.

        Args:
            scales: Input 2, with N * blocks elements.
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

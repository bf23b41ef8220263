"""MatMulNBits: a product with weights of few bits, in blocks with a scale each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, Step, TensorType
from clrt.kernels import gemm
from clrt.kernels.spec import (
    Arg,
    BufferArg,
    KernelSpec,
    Launch,
    Lowering,
    Packed,
    Variant,
    ceil_div,
    i32,
    round_up,
)
from clrt.ops.base import OnnxNode, Op, Sample, Types, known, need, register
from clrt.ops.fused import compute_type
from clrt.ops.matmul import make_epilogue
from clrt.ops.pointwise import Add

# As in matmul_nbits.cl.
_PANEL = 32
# More rows than these repay weights in float.
_FEW_ROWS = 8
_LANES = 8


def _rows(node: Node) -> int:
    return prod(node.arg(0).dims[:-1])


def _misfit_few(node: Node, caps: DeviceCaps) -> str | None:
    if _rows(node) > _FEW_ROWS:
        return f"for up to {_FEW_ROWS} rows"
    if node.input(4) is not None:
        return "blocks are given by g_idx"
    return None


def _misfit_few_cpu(node: Node, caps: DeviceCaps) -> str | None:
    if not caps.is_cpu:
        return "for CPU devices"
    if node.arg(0).dtype is not DType.FLOAT32:
        return f"for float32, not {node.arg(0).dtype}"
    return _misfit_few(node, caps)


def _weights(node: Node) -> tuple[dict[str, object], list[BufferArg]]:
    """Defines, and the packed weights, scales and zero points."""
    op, a = node.op, node.arg(0)
    assert isinstance(op, MatMulNBits)
    zero, groups = node.input(3), node.input(4)
    defines = {
        "BITS": op.bits,
        "ZEROS": int(zero is not None),
        "GROUPS": int(groups is not None),
        "DATA_T": a.dtype.cl,
        "STORAGE": a.dtype.storage,
    }
    key = f"nbits{op.bits}_{op.N}_{op.blocks}"
    columns = round_up(op.N, _PANEL)
    by_block = 4 * op.blocks * columns

    def scales(array: Array) -> Array:
        return op.by_block(op.scales(array))

    def zeros(array: Array) -> Array:
        return op.by_block(op.zero_points(array))

    packed = [
        Packed(node.arg(1), f"{key}_panels", op.pack, columns * op.lines),
        Packed(node.arg(2), f"{key}_columns", scales, by_block),
    ]
    if zero is not None:
        packed.append(Packed(zero, f"{key}_zeros", zeros, by_block))
    return defines, [BufferArg(p) for p in packed]


def _few(node: Node, lanes: int, vectors: int) -> list[Launch]:
    op, a, y, bias = node.op, node.arg(0), node.output, node.input(5)
    assert isinstance(op, MatMulNBits)
    if 0 in y.dims:
        return []
    m = _rows(node)
    rows = 1 if m == 1 else 4
    defines, weights = _weights(node)
    kernel = KernelSpec.of(
        "matmul_nbits.cl",
        "matmul_nbits",
        **defines,
        BIAS=int(bias is not None),
        T_MR=rows,
        T_NV=vectors,
        T_VW=lanes,
    )
    tensors = [BufferArg(y), BufferArg(a), *weights, *([BufferArg(bias)] if bias else [])]
    sizes = (m, op.N, op.K, round_up(op.N, _PANEL), op.block_size, op.lines)
    grid = (ceil_div(op.N, lanes * vectors), ceil_div(m, rows))
    args: tuple[Arg, ...] = (*tensors, *(i32(v) for v in sizes))
    return [Launch(kernel, grid, (1, 1) if lanes > 1 else None, args, 2 * m * op.N * op.K)]


def _emit_few_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    return _few(node, _LANES, _PANEL // _LANES)


def _emit_few_any(node: Node, ctx: Lowering) -> list[Launch]:
    return _few(node, 1, 1)


def _through_floats(
    width: Callable[[Lowering], int], emit: Callable[[gemm.Product, Lowering], list[Launch]]
) -> Callable[[Node, Lowering], list[Launch]]:
    """Weights as floats in panels of `width` columns (0: one panel), and a product of those."""

    def lower(node: Node, ctx: Lowering) -> list[Launch]:
        op, a, y, bias = node.op, node.arg(0), node.output, node.input(5)
        assert isinstance(op, MatMulNBits)
        if 0 in y.dims:
            return []
        m, per_panel = _rows(node), width(ctx)
        columns = round_up(op.N, per_panel) if per_panel else op.N
        lanes = gcd(per_panel, _LANES) if per_panel else 1
        target = BufferArg(ctx.scratch(op.K * columns, a.dtype))
        defines, weights = _weights(node)
        groups = node.input(4)
        kernel = KernelSpec.of("matmul_nbits.cl", "dequantize_nbits", **defines, BIAS=0,
                               T_MR=1, T_NV=1, T_VW=lanes)  # fmt: skip
        sizes = (op.K, round_up(op.N, _PANEL), op.block_size, op.lines, per_panel or op.N, columns)
        tensors = [target, *weights, *([BufferArg(groups)] if groups else [])]
        args: tuple[Arg, ...] = (*tensors, *(i32(v) for v in sizes))
        grid = (columns // lanes, op.blocks)
        unpack = Launch(kernel, grid, (1, 1) if lanes > 1 else None, args)
        view = gemm.View(target, (per_panel or op.N, 1), bool(per_panel))
        product = gemm.Product(
            y,
            a.dtype,
            (),
            m,
            op.N,
            op.K,
            gemm.View(BufferArg(a), (op.K, 1)),
            view,
            _epilogue(bias, TensorType(a.dtype, (m, op.N))),
            compute_type(a.dtype),
        )
        return [unpack, *emit(product, ctx)]

    return lower


def _epilogue(bias: Value | None, product: TensorType) -> gemm.Epilogue:
    if bias is None:
        return make_epilogue((), product, ())
    return make_epilogue((Step(Add(), (0, 1)),), product, (gemm.Operand(bias, (0,), True),))


@register
@dataclass(frozen=True)
class MatMulNBits(Op):
    """A times weights of `bits` bits: (level - zero point) * scale, with one of each per block.

    Inputs: A `[…, K]`; B `[N, blocks, block_size * bits / 8]`, a byte holding 8 / bits levels along
    K, the first one low; scales `[N, blocks]`; optionally zero points, of the scales' shape in A's
    dtype or packed as B is along the blocks `[N, ceil(blocks * bits / 8)]` (left out they are the
    middle level); g_idx `[K]`, the block of each place; bias `[N]`. B to g_idx are constants.

    Numerics: as MatMul; `accuracy_level` allows less, which is not used.
    Source: com.microsoft MatMulNBits 1.
    """

    K: int = 0
    N: int = 0
    bits: int = 4
    block_size: int = 32

    domain = "com.microsoft"
    host_inputs = (1, 2, 3, 4)
    variants = (
        Variant("few_rows_cpu", _emit_few_cpu, _misfit_few_cpu),
        Variant("few_rows_any", _emit_few_any, _misfit_few),
        Variant("gemm_cpu", _through_floats(gemm.packed_width, gemm.emit_cpu), gemm.misfit_cpu),
        Variant("gemm_gpu", _through_floats(lambda _: 0, gemm.emit_gpu), gemm.misfit_gpu),
        Variant("gemm_any", _through_floats(lambda _: 0, gemm.emit_any), gemm.misfit_any),
    )

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        if node.attrs.get("weight_prepacked", 0):
            raise UnsupportedError(f"{cls.name}: weights packed for a GPU of one kind")
        if node.attrs.get("bits", 4) not in (2, 4, 8):
            raise UnsupportedError(f"{cls.name}: {node.attrs['bits']} bits; expected 2, 4 or 8.")
        return super().from_onnx(node)

    @property
    def blocks(self) -> int:
        """Blocks along K."""
        return ceil_div(self.K, self.block_size)

    @property
    def lines(self) -> int:
        """Bytes of a column."""
        return self.blocks * self.block_size * self.bits // 8

    def infer(self, inputs: Types) -> list[TensorType]:
        a = need(inputs, 0, self)
        weights, scales = known(inputs, 1, self), known(inputs, 2, self)
        assert weights is not None and scales is not None
        zero, groups = known(inputs, 3, self), known(inputs, 4, self)
        if weights.size != self.N * self.lines or scales.size != self.N * self.blocks:
            raise ShapeError(
                f"{self.name}: B {weights.shape} and scales {scales.shape} do not fit {self}."
            )
        packed = self.N * ceil_div(self.blocks * self.bits, 8)
        if zero is not None and zero.size != (packed if zero.dtype == np.uint8 else scales.size):
            raise ShapeError(f"{self.name}: zero points {zero.shape} do not fit {self}.")
        if groups is not None and (
            groups.size != self.K or np.any(groups < 0) or np.any(groups >= self.blocks)
        ):
            raise ShapeError(f"{self.name}: g_idx {groups.shape} does not fit {self}.")
        if a.shape is None:
            return [TensorType(a.dtype, None)]
        if not a.shape or (isinstance(a.shape[-1], int) and a.shape[-1] != self.K):
            raise ShapeError(f"{self.name}: A {a} does not have {self.K} columns.")
        return [TensorType(a.dtype, (*a.shape[:-1], self.N))]

    def levels(self, packed: Array, count: int) -> Array:
        """Bytes `[N, bytes]` as levels `[N, count]`."""
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        parts = packed.reshape(self.N, -1, 1) >> shifts & np.uint8((1 << self.bits) - 1)
        return np.asarray(parts.reshape(self.N, -1)[:, :count])

    def packed(self, levels: Array) -> Array:
        """Levels `[N, K]` as B; those past K are 0."""
        padded = np.zeros((self.N, self.blocks * self.block_size), np.uint8)
        padded[:, : self.K] = levels
        parts = padded.reshape(self.N, -1, 8 // self.bits)
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        lines = np.bitwise_or.reduce(parts << shifts, axis=-1)
        return np.asarray(lines.reshape(self.N, self.blocks, -1))

    def packed_zeros(self, zeros: Array) -> Array:
        """Zero points uint8 `[N, blocks]` as the input, several to a byte."""
        per_byte = 8 // self.bits
        padded = np.zeros((self.N, round_up(self.blocks, per_byte)), np.uint8)
        padded[:, : self.blocks] = zeros
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        parts = padded.reshape(self.N, -1, per_byte) << shifts
        return np.asarray(np.bitwise_or.reduce(parts, axis=-1))

    def scales(self, scales: Array) -> Array:
        """Scales as float32 `[N, blocks]`."""
        return scales.reshape(self.N, self.blocks).astype(np.float32)

    def zero_points(self, zero: Array) -> Array:
        """Zero points as float32 `[N, blocks]`."""
        if zero.dtype == np.uint8:
            zero = self.levels(zero, self.blocks)
        return self.scales(zero)

    def by_block(self, columns: Array) -> Array:
        """`[N, blocks]` as the kernels read it: `[blocks, columns]`, zeros past column N."""
        wide = np.zeros((self.blocks, round_up(self.N, _PANEL)), np.float32)
        wide[:, : self.N] = columns.T
        return wide

    def pack(self, weights: Array) -> Array:
        """B as the kernels read it: `[panel, line, column]`, zeros past column N."""
        padded = np.zeros((round_up(self.N, _PANEL), self.lines), np.uint8)
        padded[: self.N] = weights.reshape(self.N, self.lines)
        panels = padded.reshape(-1, _PANEL, self.lines)
        return np.ascontiguousarray(panels.swapaxes(1, 2))

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, weights, scales, zero, groups, bias = (*inputs, None, None, None)[:6]
        assert a is not None and weights is not None and scales is not None
        block = np.arange(self.K) // self.block_size if groups is None else groups
        middle = 1 << (self.bits - 1)
        zeros = np.float32(middle) if zero is None else self.zero_points(zero)[:, block]
        dequantised = (self.levels(weights, self.K) - zeros) * self.scales(scales)[:, block]
        y = a.astype(np.float64) @ dequantised.T.astype(np.float64)
        return ((y if bias is None else y + bias).astype(a.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(79)
        for bits, k, n, lead in (
            (4, 16, 1, (1,)),
            (4, 64, 33, (5,)),
            (8, 40, 70, (2, 3)),
            (2, 37, 8, (1,)),
            (4, 41, 97, (3, 4)),
            (8, 32, 16, (9,)),
        ):
            op = cls(k, n, bits, 16)
            weights = np.asarray(
                rng.integers(0, 256, (n, op.blocks, op.lines // op.blocks)), np.uint8
            )
            packed = np.asarray(rng.integers(0, 256, (n, ceil_div(op.blocks * bits, 8))), np.uint8)
            for dtype in (np.float32, np.float16):
                a = np.asarray(rng.uniform(-1, 1, (*lead, k)), dtype)
                scales = np.asarray(rng.uniform(0.01, 0.1, (n, op.blocks)), dtype)
                zeros = np.asarray(rng.uniform(0, 9, (n, op.blocks)), dtype)
                groups = np.asarray(rng.integers(0, op.blocks, k), np.int32)
                bias = np.asarray(rng.uniform(-1, 1, n), dtype)
                yield Sample(op, (a, weights, scales))
                yield Sample(op, (a, weights, scales, packed, None, bias))
                yield Sample(op, (a, weights, scales, zeros, groups, bias))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        weights, scales = np.zeros((3, 2, 8), np.uint8), np.ones((3, 2), np.float32)
        a = np.zeros((2, 32), np.float32)
        yield Sample(cls(32, 4, 4, 16), (a, weights, scales)), ShapeError
        yield Sample(cls(32, 3, 4, 16), (a[:, :31], weights, scales)), ShapeError

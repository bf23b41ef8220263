"""Matrix products on the device: one description of the operands behind every product op."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import UnsupportedError
from clrt.ir.dims import same, same_shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, Step, TensorType
from clrt.kernels.spec import (
    Arg,
    BufferArg,
    Fits,
    KernelSpec,
    Launch,
    Lowering,
    Packed,
    Scratch,
    Variant,
    always,
    ceil_div,
    i32,
    round_up,
)
from clrt.kernels.strided import broadcast_strides, collapse, contiguous_strides, copy_launch
from clrt.ops.fused import render, step_types, symbolic_shape

GPU_SIDE = 16
MAX_BATCH_AXES = 2


@dataclass(frozen=True)
class Matrix:
    """Where the elements of an operand lie.

    Attributes:
        batch: Strides of the two batch axes.
        row, column: Strides of the matrix itself.
    """

    arg: BufferArg
    batch: tuple[int, int]
    row: int
    column: int


@dataclass(frozen=True)
class Product:
    """A product whose shapes are all numbers.

    Attributes:
        batch: Sizes of the two batch axes.
        before: Launches that make the operands.
        row_bias: Vectors behind the product belong to its rows (batch axis 1 and M), not columns.
    """

    node: Node
    steps: tuple[Step, ...]
    a: Matrix
    b: Matrix
    batch: tuple[int, int]
    m: int
    n: int
    k: int
    before: tuple[Launch, ...] = ()
    row_bias: bool = False

    @property
    def batches(self) -> int:
        return math.prod(self.batch)

    @property
    def is_empty(self) -> bool:
        return 0 in (self.batches, self.m, self.n)

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.m * self.n * self.k


def describe(node: Node, trans_a: bool, trans_b: bool, steps: tuple[Step, ...]) -> Product:
    """The product that a node is, with as much of the batch as possible folded into its rows.

    Raises:
        UnsupportedError: More than two batch axes remain after merging.
    """
    a, b = node.arg(0), node.arg(1)
    a_dims = a.dims if len(a.dims) > 1 else (1, *a.dims)
    b_dims = b.dims if len(b.dims) > 1 else (*b.dims, 1)
    a_strides, b_strides = contiguous_strides(a_dims), contiguous_strides(b_dims)
    m, k = (a_dims[-1], a_dims[-2]) if trans_a else (a_dims[-2], a_dims[-1])
    n = b_dims[-2] if trans_b else b_dims[-1]
    a_row, a_column = (a_strides[-1], a_strides[-2]) if trans_a else a_strides[-2:]
    b_row, b_column = (b_strides[-1], b_strides[-2]) if trans_b else b_strides[-2:]
    lead = np.broadcast_shapes(a_dims[:-2], b_dims[:-2])
    if math.prod(b_dims[:-2]) == 1 and not trans_a:
        m, lead = m * math.prod(a_dims[:-2]), ()
    batch, (a_batch, b_batch) = collapse(
        lead, _batch_strides(a_dims, lead), _batch_strides(b_dims, lead)
    )
    if len(batch) > MAX_BATCH_AXES:
        raise UnsupportedError(f"{len(batch)} batch axes remain after merging")
    return Product(
        node,
        steps,
        Matrix(BufferArg(a), _two(a_batch, 0), a_row, a_column),
        Matrix(BufferArg(b), _two(b_batch, 0), b_row, b_column),
        _two(batch, 1),
        m,
        n,
        k,
    )


def _batch_strides(dims: Sequence[int], lead: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous stack of matrices, walked as if it had the batch axes `lead`."""
    if not lead:
        return ()
    matrix = dims[-2] * dims[-1]
    return tuple(s * matrix for s in broadcast_strides(dims[:-2], lead))


def _two(values: Sequence[int], fill: int) -> tuple[int, int]:
    padded = (fill,) * (MAX_BATCH_AXES - len(values)) + tuple(values)
    return padded[0], padded[1]


def epilogue_operand_fits(extra: Value, product: Value) -> bool:
    """Whether the epilogue of a product can read an operand: one element, a row, or all of it."""
    if extra.shape is None or product.shape is None:
        return False
    lead = extra.shape[:-1]
    is_row = (
        bool(product.shape) and all(same(d, 1) for d in lead) and len(lead) < len(product.shape)
    )
    if all(same(d, 1) for d in extra.shape) and len(extra.shape) <= len(product.shape):
        return True
    if is_row and same(extra.shape[-1], product.shape[-1]):
        return True
    return same_shape(extra.shape, product.shape)


@dataclass(frozen=True)
class _Epilogue:
    """The macros and arguments of the steps behind a product."""

    defines: dict[str, object]
    args: tuple[Arg, ...]


def _epilogue(product: Product) -> _Epilogue:
    """Renders the steps; an operand is one element, one row for all rows, or like the output."""
    node, y = product.node, product.node.output
    extras = [v for v in node.inputs[2:] if v is not None]
    types = [TensorType(v.dtype, None) for v in (node.arg(0), *extras)]
    program = render(product.steps, types)
    if isinstance(program, str):
        raise UnsupportedError(program)
    reads, args = [], []
    for index, extra in enumerate(extras, start=1):
        suffix = "_HALF" if extra.dtype is DType.FLOAT16 else ""
        shape = symbolic_shape(extra)
        one = all(same(d, 1) for d in shape)
        is_like_output = not one and same_shape(shape, symbolic_shape(y))
        strides: tuple[int, ...] = (0, 0, 0)
        if is_like_output:
            strides = contiguous_strides((*product.batch, product.m, product.n))[:3]
        elif product.row_bias:
            one, strides = True, (0, product.m, 1)
        reads.append(f"const F v{index} = {'ROW' if one else 'COLUMNS'}{suffix}({index});")
        args += [BufferArg(extra), *map(i32, strides)]
    inputs = "".join(
        f", IN({v.dtype.cl}, x{i}), const IDX_T x{i}_s0, const IDX_T x{i}_s1, const IDX_T x{i}_sm"
        for i, v in enumerate(extras, start=1)
    )
    defines: dict[str, object] = {
        "INPUTS": inputs,
        "READS": " ".join(reads),
        "BODY": program.body,
        "RESULT": program.result,
    }
    return _Epilogue(defines, tuple(args))


def _is_float32(node: Node, steps: tuple[Step, ...]) -> bool:
    present = [v for v in node.inputs if v is not None]
    types = step_types(steps, [TensorType(v.dtype, None) for v in (present[0], *present[2:])])
    return all(v.dtype is DType.FLOAT32 for v in (*present, node.output)) and all(
        t.dtype in (DType.FLOAT32, DType.BOOL) for t in types
    )


Describe: TypeAlias = Callable[[Node, Lowering], Product]
StepsOf: TypeAlias = Callable[[Node], "tuple[Step, ...]"]


class ProductEmitter:
    """Emits the launches of a product op; an op says how to read its node as a product."""

    def __init__(self, describe_node: Describe, steps_of_node: StepsOf) -> None:
        self.describe = describe_node
        self.steps = steps_of_node

    def variants(self, misfit: Fits = always) -> tuple[Variant, ...]:
        """The variants in order of preference; the last holds on every device.

        Args:
            misfit: What all of them refuse.
        """

        def also(own: Fits) -> Fits:
            return lambda node, caps: misfit(node, caps) or own(node, caps)

        return (
            Variant("cpu", self.emit_cpu, also(self._cpu_misfit)),
            Variant("gpu", self.emit_gpu, also(self._gpu_misfit)),
            Variant("any", self.emit_any, also(self._any_misfit)),
        )

    def _cpu_misfit(self, node: Node, caps: DeviceCaps) -> str | None:
        if not caps.is_cpu:
            return "the device is no CPU"
        return None if _is_float32(node, self.steps(node)) else "operands are not all float32"

    def _gpu_misfit(self, node: Node, caps: DeviceCaps) -> str | None:
        if caps.is_cpu:
            return "the device is a CPU"
        if caps.max_work_group_size < GPU_SIDE * GPU_SIDE:
            return f"work-groups hold fewer than {GPU_SIDE * GPU_SIDE} work-items"
        return None if _is_float32(node, self.steps(node)) else "operands are not all float32"

    def _any_misfit(self, node: Node, caps: DeviceCaps) -> str | None:
        if node.output.dtype is DType.FLOAT64 and not caps.has_fp64:
            return "the device has no float64"
        return None

    def emit_cpu(self, node: Node, ctx: Lowering) -> list[Launch]:
        """Packs B unless it is a constant (packed once, at load), then one register-tiled launch."""
        product = self.describe(node, ctx)
        if product.is_empty:
            return []
        tile = {"T_MR": 4, "T_NV": 3, "T_VW": 8, **ctx.tunables("gemm_cpu")}
        width = tile["T_NV"] * tile["T_VW"]
        launches, a = _rows_in_place(product, ctx)
        packing, b, b_batch = _packed(product, width, ctx)
        epilogue = _epilogue(product)
        columns = symbolic_shape(node.output)[-1:] if node.output.dims else ()
        whole = bool(columns) and isinstance(columns[0], int) and columns[0] % tile["T_VW"] == 0
        kernel = KernelSpec.of(
            "gemm_cpu.cl", "gemm_cpu", S_N_WHOLE=int(whole), **tile, **epilogue.defines
        )
        size = (ceil_div(product.m, tile["T_MR"]), ceil_div(product.n, width), product.batches)
        scalars = (
            product.m, product.n, product.k, product.batch[1], *a.batch, a.row, *b_batch,
        )  # fmt: skip
        args = (BufferArg(node.output), a.arg, b, *map(i32, scalars), *epilogue.args)
        launch = Launch(kernel, size, (1, 1, 1), args, product.flops)
        return [*product.before, *launches, *packing, launch]

    def emit_gpu(self, node: Node, ctx: Lowering) -> list[Launch]:
        """One launch through tiles in local memory."""
        product = self.describe(node, ctx)
        if product.is_empty:
            return []
        tile = {"T_RM": 4, "T_RN": 4, "T_TK": 16, **ctx.tunables("gemm_gpu")}
        epilogue = _epilogue(product)
        kernel = KernelSpec.of(
            "gemm_gpu.cl", "gemm_gpu", **tile, **epilogue.defines,
            S_A_K_LAST=int(product.a.column == 1), S_B_N_LAST=int(product.b.column == 1),
        )  # fmt: skip
        size = (
            ceil_div(product.n, GPU_SIDE * tile["T_RN"]) * GPU_SIDE,
            ceil_div(product.m, GPU_SIDE * tile["T_RM"]) * GPU_SIDE,
            product.batches,
        )
        args = (*_plain_args(product), *epilogue.args)
        local = (GPU_SIDE, GPU_SIDE, 1)
        return [*product.before, Launch(kernel, size, local, args, product.flops)]

    def emit_any(self, node: Node, ctx: Lowering) -> list[Launch]:
        """One work-item per element, any dtype, any strides."""
        product = self.describe(node, ctx)
        if product.is_empty:
            return []
        epilogue = _epilogue(product)
        dtype, out = node.arg(0).dtype, node.output.dtype
        half = dtype is DType.FLOAT16
        kernel = KernelSpec.of(
            "gemm_any.cl", "gemm_any", DATA_T=dtype.cl, ACC_T="float" if half else dtype.cl,
            OUT_T=out.cl, LOAD_HALF=int(half), STORE_HALF=int(out is DType.FLOAT16),
            **epilogue.defines,
        )  # fmt: skip
        size = (product.n, product.m, product.batches)
        args = (*_plain_args(product), *epilogue.args)
        return [*product.before, Launch(kernel, size, None, args, product.flops)]


def _plain_args(product: Product) -> tuple[Arg, ...]:
    a, b = product.a, product.b
    scalars = (
        product.m, product.n, product.k, product.batch[1], *a.batch, a.row, a.column, *b.batch,
        b.row, b.column,
    )  # fmt: skip
    return (BufferArg(product.node.output), a.arg, b.arg, *map(i32, scalars))


def _rows_in_place(product: Product, ctx: Lowering) -> tuple[list[Launch], Matrix]:
    """A with K as its last axis; a transposed A is copied first."""
    a = product.a
    if a.column == 1 or product.k <= 1:
        return [], a
    scratch = ctx.scratch(product.batches * product.m * product.k)
    shape = (*product.batch, product.m, product.k)
    strides = contiguous_strides(shape)
    copy = copy_launch(
        a.arg, BufferArg(scratch), DType.FLOAT32, shape, (*a.batch, a.row, a.column), strides
    )
    return [copy], Matrix(BufferArg(scratch), strides[:2], strides[2], 1)


def _packed(
    product: Product, width: int, ctx: Lowering
) -> tuple[list[Launch], BufferArg, tuple[int, int]]:
    """B as [matrix][panel][K][width], and its batch strides in that form."""
    b, source = product.b, product.b.arg.buffer
    assert isinstance(source, (Value, Scratch))
    matrix, columns = product.n * product.k, round_up(product.n, width)
    elems = source.elems if isinstance(source, Scratch) else math.prod(source.dims)
    count = elems // matrix if matrix else 0
    strides = tuple(s // matrix * columns * product.k if matrix else 0 for s in b.batch)
    if isinstance(source, Value) and source.is_constant:
        transposed = b.column != 1 and product.k != 1
        n, k = product.n, product.k

        def pack(array: Array) -> Array:
            stack = array.reshape((-1, n, k)).swapaxes(1, 2) if transposed else array
            return pack_panels(stack.reshape((-1, k, n)), width)

        layout = f"panels{width}{'t' if transposed else ''}"
        return [], BufferArg(Packed(source, layout, pack)), (strides[0], strides[1])
    scratch = ctx.scratch(count * columns * product.k)
    scalars = (
        product.n, product.k, width, columns, count, max(count, 1), 0, matrix, b.row, b.column,
    )  # fmt: skip
    launch = Launch(
        KernelSpec.of("pack_panels.cl", "pack_panels"),
        (columns, product.k, count),
        None,
        (BufferArg(scratch), b.arg, *map(i32, scalars)),
    )
    return [launch], BufferArg(scratch), (strides[0], strides[1])


def pack_panels(stack: Array, width: int) -> Array:
    """[matrix, K, N] as [matrix, panel, K, width], with zeros past N."""
    count, k, n = stack.shape
    panels = ceil_div(n, width)
    packed = np.zeros((count, panels, k, width), np.float32)
    for panel in range(panels):
        part = stack[:, :, panel * width : (panel + 1) * width]
        packed[:, panel, :, : part.shape[2]] = part
    return packed


def wide_matmul(a: Array, b: Array) -> Array:
    """The product with float64 accumulation for floating point, in the dtype of `a`."""
    if a.dtype.kind == "f":
        return np.matmul(a, b, dtype=np.float64).astype(a.dtype)
    return np.asarray(np.matmul(a, b))

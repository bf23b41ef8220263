"""A matrix product with an epilogue, as kernels take it: which elements of which buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Code, Define
from clrt.ir.dims import Shape, provably_equal, same_shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.kernels.block_quantized import BlockQuantizedWeights
from clrt.kernels.quantized_panels_cpu import QuantizedPanels
from clrt.kernels.quantized_rows_gpu import PackedQuantizedRows
from clrt.kernels.spec import (
    VEC8,
    BufferArg,
    Launch,
    RowPitchSupport,
    Scratch,
    indexed_args,
    number_inputs,
)
from clrt.kernels.strided import collapse, contiguous_strides, copy_launches
from clrt.kernels.variant import ChunkLowering, Lowering

# Kernels walk two batch axes; more are copied into one.
_BATCH_AXES = 2
_MAX_EXACT_RANK = 4
_STEPS = ("s0", "s1", "sm")
_EMPTY, _PRODUCT = Code(""), Code("v0")
_INPUT = Code(", IN({type}, x{0}), const IDX_T x{0}_s0, const IDX_T x{0}_s1, const IDX_T x{0}_sm")
_OPERAND = Code(", x{0}_buffer, x{0}_offset, x{0}_s0, x{0}_s1, x{0}_sm")
_NUMBER = Code(", c{}")
_READ = Code("const {1} v{0} = {2}({0}, {3});")
_SECOND = Code("const {1} v{0} = SECOND;")
_COLUMNS_BYTES = 64 << 20  # of the images whose columns are made at once


@dataclass(frozen=True)
class MatrixOperand:
    """A stack of matrices in a buffer.

    Attributes:
        strides: In elements: one per batch axis of the product (0 where broadcast), then those of
            the matrix' rows and columns.
        in_panels: For B under `emit_cpu`: already packed, `packed_width` columns to a panel.
        by_rows: Rows of the matrices are those of a tensor along its last axis.
    """

    buffer: BufferArg
    strides: tuple[int, ...]
    in_panels: bool = False
    by_rows: bool = False

    @property
    def is_wide(self) -> bool:
        """Whether the axis whose elements are neighbours has aligned octets alone, at any shape."""
        *leads, rows, columns = self.strides
        value, offset = self.buffer.buffer, self.buffer.offset
        if not isinstance(value, Value) or offset % VEC8 or 1 not in (rows, columns):
            return False
        # The axis is the last one of the tensor: else a step to another row is no multiple of it.
        width = (value.symbolic_shape or value.dims)[-1]
        if not isinstance(width, int) or width < 1 or width % VEC8:
            return False
        return not any(s % width for s in (*leads, rows if columns == 1 else columns))


@dataclass(frozen=True)
class EpilogueOperand:
    """An operand of the epilogue.

    Attributes:
        strides: One per batch axis of the product, then that of the rows.
        per_column: Whether it has an element per column, next to each other, or one per row.
        offset: Elements of the value before the first one.
        width: Of the rows that the value has along its last axis, of which strides are multiples
            that lead to other rows; 0 where it must lie as one.
        in_tile: The launch computes it beside the product: SECOND is a vector of it.
    """

    value: Value
    strides: tuple[int, ...]
    per_column: bool
    offset: int = 0
    width: int = 0
    in_tile: bool = False


@dataclass(frozen=True)
class Epilogue:
    """What happens to each element before it is stored: OpenCL C over v0, v1, …

    Attributes:
        types: The C type in which each operand is computed.
        numbers: What c0, c1, … are.
        vectorises: The code also holds for float vectors, and all operands are float32.
    """

    operands: tuple[EpilogueOperand, ...] = ()
    types: tuple[Code, ...] = ()
    numbers: tuple[float, ...] = ()
    body: Code = _EMPTY
    result: Code = _PRODUCT
    vectorises: bool = True

    def check_vectors(self) -> None:
        """Refuses what the kernels of vectors cannot do.

        Raises:
            UnsupportedError: An operand or the result is not float32.
        """
        if not self.vectorises:
            raise UnsupportedError("an operand or the result is not float32")

    @property
    def defines(self) -> dict[str, Define]:
        """The macros of the kernels of products: INPUTS, OPERANDS, READS, BODY, RESULT."""
        inputs, operands, reads = [], [], []
        for k, (operand, kind) in enumerate(zip(self.operands, self.types, strict=True), 1):
            if operand.in_tile:
                reads.append(_SECOND.substitute(k, kind))
                continue
            dtype = operand.value.dtype
            inputs.append(_INPUT.substitute(k, type=dtype.cl))
            operands.append(_OPERAND.substitute(k))
            macro = Code("COLUMNS") if operand.per_column else Code("ROW")
            reads.append(_READ.substitute(k, kind, macro, dtype.storage))
        inputs.append(number_inputs(len(self.numbers)))
        operands += map(_NUMBER.substitute, range(len(self.numbers)))
        return {
            "INPUTS": Code("").join(inputs),
            "OPERANDS": Code("").join(operands),
            "READS": Code(" ").join(reads),
            "BODY": self.body,
            "RESULT": self.result,
        }

    @property
    def args(self) -> dict[str, Any]:
        """What INPUTS declares."""
        args: dict[str, Any] = {}
        for k, operand in enumerate(self.operands, 1):
            if operand.in_tile:
                continue
            steps = {f"x{k}_{n}": s for n, s in zip(_STEPS, operand.strides, strict=True)}
            rows = _rows(operand.width, steps) if operand.width else None
            args[f"x{k}"] = BufferArg(operand.value, operand.offset, rows=rows)
            args |= steps
        return args | indexed_args("c", self.numbers)

    def from_batch(self, first: int) -> Epilogue:
        """The epilogue of a product whose first batch axis starts at `first` of this one's."""
        moved = (replace(o, offset=o.offset + first * o.strides[0]) for o in self.operands)
        return replace(self, operands=tuple(moved))


@dataclass(frozen=True)
class GemmProblem:
    """y[batch, m, n] = epilogue(sum over k of a[batch, m, k] b[batch, k, n]); y is row-major.

    Attributes:
        accumulator: The C type of the sum.
        a_dtype: What numbers of A may be rounded to; None where they may not.
        b_dtype: Of B, where it is not `dtype`: weights in 16 bits.
        blocks, levels, level_rows: B of few bits, as kernels read it that compute with floats, with
            integers, and on GPUs; `b` is then not read.
        y_offset: Elements of y before the first one of this product.
        n_varies: Whether N follows from the sizes of a call, where y does not tell.
        flops: For the profile.
    """

    y: Value | Scratch
    dtype: DType
    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: MatrixOperand
    b: MatrixOperand
    epilogue: Epilogue = Epilogue()
    accumulator: Code = DType.FLOAT32.cl
    y_offset: int = 0
    a_dtype: DType | None = None
    b_dtype: DType | None = None
    blocks: BlockQuantizedWeights | None = None
    levels: QuantizedPanels | None = None
    level_rows: PackedQuantizedRows | None = None
    n_varies: bool = False

    @property
    def right(self) -> DType:
        """The dtype of B."""
        return self.b_dtype or self.dtype

    @property
    def batches(self) -> int:
        return prod(self.batch)

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.m * self.n * self.k

    @property
    def result(self) -> BufferArg:
        """Where y begins."""
        return BufferArg(self.y, self.y_offset)

    @property
    def args(self) -> dict[str, Any]:
        """What all kernels declare of y, of A and of sizes; merged, so that there are two axes."""
        a_s0, a_s1, a_row, _ = self.a.strides
        sizes = {"M": self.m, "N": self.n, "K": self.k, "d1": self.batch[1]}
        strides = {"a_s0": a_s0, "a_s1": a_s1, "a_row": a_row}
        rows = _rows(self.k, strides) if self.a.by_rows else None
        return {"y": self.result, "a": replace(self.a.buffer, rows=rows), **sizes, **strides}

    @property
    def a_in_octets(self) -> BufferArg:
        """The argument for A of kernels that read it in octets."""
        a: BufferArg = self.args["a"]
        return a if a.rows is None else replace(a, rows=replace(a.rows, requires_vec8=True))

    @property
    def b_defines(self) -> dict[str, Define]:
        """The macros that say how the elements of B lie."""
        if self.level_rows is not None:
            return {"B_T": DType.UINT8.cl, **self.level_rows.defines}
        if self.blocks is not None:
            return {"B_T": DType.UINT8.cl, "BITS": self.blocks.bits}
        return {"B_T": self.right.cl, "B_STORAGE": self.right.storage}

    @property
    def strided_args(self) -> dict[str, Any]:
        """What kernels declare that read A and B in place."""
        b_s0, b_s1, b_k, b_n = self.b.strides
        strides = {"a_k": self.a.strides[-1], "b_s0": b_s0, "b_s1": b_s1, "b_k": b_k, "b_n": b_n}
        return {**self.args, **self._b_args, **strides, **self.epilogue.args}

    @property
    def _b_args(self) -> dict[str, Any]:
        if self.level_rows is not None:
            return self.level_rows.args
        return {"b": self.b.buffer} if self.blocks is None else self.block_args(self.n)

    def block_args(self, columns: int) -> dict[str, Any]:
        """B in panels of columns, and what BLOCK_INPUTS declares."""
        assert self.blocks is not None
        levels, pairs = self.blocks.packed(self.n, self.k, columns)
        return {"b": levels, "blocks": pairs, "block_size": self.blocks.size}

    @property
    def is_empty(self) -> bool:
        return self.batches * self.m * self.n == 0


def _rows(width: int, strides: Mapping[str, int]) -> RowPitchSupport:
    """The rows through which strides lead that are multiples of their width."""
    return RowPitchSupport(width, tuple(n for n, s in strides.items() if s and not s % width))


def epilogue_operand_fits(extra: Shape | None, out: Shape | None) -> bool:
    """Whether the kernels can read an operand of shape `extra` in the epilogue of a product `out`.

    Both shapes may be symbolic. The operand must not widen the product. Its last axis is 1 or
    that of the product; where the product has more than four axes, the others are all 1 or all
    those of the product.
    """
    if extra is None or out is None or len(extra) > len(out):
        return False
    full = (1,) * (len(out) - len(extra)) + extra
    if not all(
        provably_equal(e, 1) or provably_equal(e, o) for e, o in zip(full, out, strict=True)
    ):
        return False
    if len(out) <= _MAX_EXACT_RANK:
        return True
    return all(provably_equal(e, 1) for e in full[:-1]) or same_shape(full[:-1], out[:-1])


def merge(product: GemmProblem, ctx: Lowering) -> tuple[list[Launch], GemmProblem]:
    """The same product over exactly two batch axes, with as much as possible in its rows.

    Raises:
        UnsupportedError: The operands of the epilogue walk more batch axes than that.
    """
    merged = _collapse(product)
    launches: list[Launch] = []
    if len(merged.batch) > _BATCH_AXES:
        if product.right is not product.dtype:
            raise UnsupportedError(f"B in {product.right} walks {len(merged.batch)} batch axes")
        launches, copied = _copy_batches(product, ctx)
        merged = _collapse(copied)
    if len(merged.batch) > _BATCH_AXES:
        raise UnsupportedError(
            f"the epilogue walks {len(merged.batch)} batch axes; kernels walk {_BATCH_AXES}"
        )
    lead = _BATCH_AXES - len(merged.batch)
    zeros = (0,) * lead
    operands = tuple(replace(o, strides=zeros + o.strides) for o in merged.epilogue.operands)
    padded = replace(
        merged,
        batch=(1,) * lead + merged.batch,
        a=replace(merged.a, strides=zeros + merged.a.strides),
        b=replace(merged.b, strides=zeros + merged.b.strides),
        epilogue=replace(merged.epilogue, operands=operands),
    )
    return launches, padded


def _collapse(product: GemmProblem) -> GemmProblem:
    """Merges batch axes with each other, and with the rows where B is the same in all of them."""
    a, b, operands = product.a.strides, product.b.strides, product.epilogue.operands
    dims, strides = collapse(
        (*product.batch, product.m),
        a[:-1],
        (*b[:-2], 0),
        *(o.strides for o in operands),
    )
    # An axis of one element is dropped: then the last one may be a batch axis with its own B.
    if not dims or strides[1][-1] != 0:
        dims, strides = (*dims, 1), [(*s, 0) for s in strides]
    return replace(
        product,
        batch=dims[:-1],
        m=dims[-1],
        a=replace(product.a, strides=(*strides[0], a[-1])),
        b=replace(product.b, strides=(*strides[1][:-1], *b[-2:])),
        epilogue=replace(
            product.epilogue,
            operands=tuple(
                replace(o, strides=s) for o, s in zip(operands, strides[2:], strict=True)
            ),
        ),
    )


def _copy_batches(product: GemmProblem, ctx: Lowering) -> tuple[list[Launch], GemmProblem]:
    """A and B in full, broadcasting undone."""
    launches: list[Launch] = []
    views: list[MatrixOperand] = []
    for view, matrix in ((product.a, (product.m, product.k)), (product.b, (product.k, product.n))):
        launch, copy = _copy(view, (*product.batch, *matrix), product.dtype, ctx)
        launches += launch
        views.append(copy)
    return launches, replace(product, a=views[0], b=views[1])


def copy_a(product: GemmProblem, ctx: Lowering) -> tuple[list[Launch], GemmProblem]:
    """A with its rows one after the other; a batch axis over which it repeats is copied once."""
    strides = product.a.strides
    own = tuple(1 if s == 0 else d for d, s in zip(product.batch, strides, strict=False))
    launches, copy = _copy(product.a, (*own, product.m, product.k), product.dtype, ctx)
    kept = tuple(0 if d == 1 else s for d, s in zip(own, copy.strides, strict=False))
    return launches, replace(product, a=replace(copy, strides=(*kept, *copy.strides[-2:])))


def _copy(
    view: MatrixOperand, shape: tuple[int, ...], dtype: DType, ctx: Lowering
) -> tuple[list[Launch], MatrixOperand]:
    target = BufferArg(ctx.scratch(prod(shape), dtype))
    strides = contiguous_strides(shape)
    launches = copy_launches(ctx, view.buffer, target, dtype, shape, view.strides, strides)
    return [] if 0 in shape else launches, MatrixOperand(target, strides)


def image_chunks(
    images: int, image_bytes: int, ctx: Lowering
) -> Iterator[tuple[int, int, Lowering]]:
    """As many images at once as have their columns in a bounded amount of memory, at least one.

    Args:
        image_bytes: Of the columns of one image.

    Yields:
        The first image of a chunk, how many it has, and what its launches ask for memory.
    """
    size = max(_COLUMNS_BYTES // max(image_bytes, 1), 1)
    held: list[Scratch] = []
    first = 0
    while first < images:
        yield first, min(size, images - first), ChunkLowering(ctx.caps, ctx.record, held)
        first += size

"""GEMM problems: operands as strided views of buffers, batch axes, and the epilogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Code, Define
from clrt.ir.dims import Shape, provably_equal, same_shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.kernels.quantized_weights import QuantizedWeights
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
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.variant import ChunkLowering, Lowering
from clrt.util.fast_dataclass import dataclass

# Maximum number of batch axes that kernels index; operands with more are copied so that axes merge.
_BATCH_AXES = 2
# Maximum rank of a result for which an epilogue operand may be broadcast along any of its axes.
_MAX_EXACT_RANK = 4
# Suffixes of the stride arguments of an epilogue operand: two batch axes and the rows.
_STRIDE_NAMES = ("s0", "s1", "sm")
_EMPTY, _PRODUCT = Code(""), Code("v0")
_INPUT = Code(", IN({type}, x{0}), const IDX_T x{0}_s0, const IDX_T x{0}_s1, const IDX_T x{0}_sm")
_OPERAND = Code(", x{0}_buffer, x{0}_offset, x{0}_s0, x{0}_s1, x{0}_sm")
_NUMBER = Code(", c{}")
_READ = Code("const {1} v{0} = {2}({0}, {3});")
_SECOND_GEMM = Code("const {1} v{0} = SECOND_GEMM;")


class ImageChunks(Thresholds):
    """Threshold of the chunks of images that are convolved one after the other."""

    columns_bytes: int = tunable(
        64 << 20,
        "bytes",
        "Maximum size of the im2col buffer of a chunk, which has at least one image.",
    )

    group: ClassVar = "image_chunks"


@dataclass(frozen=True)
class MatrixOperand:
    """A or B of a GEMM: a strided batch of matrices in a buffer.

    Attributes:
        buffer: The buffer, with the offset of the first matrix.
        strides: Strides in elements: one per batch axis of the product (0 if broadcast), then the
            stride from row to row and the stride from column to column.
        in_panels: For B under `emit_cpu`: already packed in panels of `packed_width` columns.
        by_rows: For A: True if each row of a matrix is a row of the tensor along its last axis. The
            tensor may then be a subview with a row pitch.
    """

    buffer: BufferArg
    strides: tuple[int, ...]
    in_panels: bool = False
    by_rows: bool = False

    @property
    def is_wide(self) -> bool:
        """Whether kernels can read this operand in aligned vectors of 8, at all input shapes.

        The vectors are along the contiguous axis of the matrix.
        """
        *leads, rows, columns = self.strides
        value, offset = self.buffer.buffer, self.buffer.offset
        if not isinstance(value, Value) or offset % VEC8 or 1 not in (rows, columns):
            return False
        # Strides are multiples of the width only if the axis is the tensor's last one.
        width = (value.symbolic_shape or value.dims)[-1]
        if not isinstance(width, int) or width < 1 or width % VEC8:
            return False
        return not any(s % width for s in (*leads, rows if columns == 1 else columns))


@dataclass(frozen=True)
class EpilogueOperand:
    """An extra operand of the epilogue, such as a bias or a residual.

    Attributes:
        value: The tensor.
        strides: Strides in elements: one per batch axis of the product, then the stride from row to
            row.
        per_column: True if the operand has one element per column, contiguous; False if it has one
            per row.
        offset: Offset of the first element, in elements.
        width: Row width of the value along its last axis, in elements. Rows may then have a pitch,
            and strides that are multiples of `width` step from row to row. 0 if the value must be
            contiguous.
        in_tile: Whether the launch itself computes the operand, as a second product; the epilogue
            reads it by the macro SECOND_GEMM.
    """

    value: Value
    strides: tuple[int, ...]
    per_column: bool
    offset: int = 0
    width: int = 0
    in_tile: bool = False


@dataclass(frozen=True)
class Epilogue:
    """Elementwise operations on the product before it is stored: OpenCL C over v0, v1, …

    v0 is the product, v1, v2, … are the operands, and c0, c1, … are numbers.

    Attributes:
        operands: Tensors that the epilogue reads beside the product.
        types: C type in which each operand is computed.
        numbers: Values of c0, c1, …
        body: Statements that declare the variables of `result`.
        result: Expression of the element to store.
        vectorises: Whether the code also works on vectors of floats, and all operands and the
            result are float32.
    """

    operands: tuple[EpilogueOperand, ...] = ()
    types: tuple[Code, ...] = ()
    numbers: tuple[float, ...] = ()
    body: Code = _EMPTY
    result: Code = _PRODUCT
    vectorises: bool = True

    def check_vectors(self) -> None:
        """Checks that kernels which compute float vectors can apply this epilogue.

        Raises:
            UnsupportedError: An operand or the result is not float32.
        """
        if not self.vectorises:
            raise UnsupportedError("an operand or the result is not float32")

    @property
    def defines(self) -> dict[str, Define]:
        """Macros EPILOGUE_… by which GEMM kernels declare, load and apply an epilogue."""
        inputs, operands, reads = [], [], []
        for k, (operand, kind) in enumerate(zip(self.operands, self.types, strict=True), 1):
            if operand.in_tile:
                reads.append(_SECOND_GEMM.substitute(k, kind))
                continue
            dtype = operand.value.dtype
            inputs.append(_INPUT.substitute(k, type=dtype.cl))
            operands.append(_OPERAND.substitute(k))
            macro = Code("COLUMNS") if operand.per_column else Code("ROW")
            reads.append(_READ.substitute(k, kind, macro, dtype.storage))
        inputs.append(number_inputs(len(self.numbers)))
        operands += map(_NUMBER.substitute, range(len(self.numbers)))
        return {
            "EPILOGUE_PARAMS": Code("").join(inputs),
            "EPILOGUE_ARGS": Code("").join(operands),
            "EPILOGUE_LOADS": Code(" ").join(reads),
            "EPILOGUE_BODY": self.body,
            "EPILOGUE_RESULT": self.result,
        }

    @property
    def args(self) -> dict[str, Any]:
        """Kernel arguments of EPILOGUE_PARAMS: operands, their strides, and numbers."""
        args: dict[str, Any] = {}
        for k, operand in enumerate(self.operands, 1):
            if operand.in_tile:
                continue
            strides = {f"x{k}_{n}": s for n, s in zip(_STRIDE_NAMES, operand.strides, strict=True)}
            rows = _rows(operand.width, strides) if operand.width else None
            args[f"x{k}"] = BufferArg(operand.value, operand.offset, rows=rows)
            args |= strides
        return args | indexed_args("c", self.numbers)

    def from_batch(self, first: int) -> Epilogue:
        """Returns this epilogue for a GEMM that starts at another matrix of the batch.

        Args:
            first: Index of that matrix along batch axis 0.
        """
        moved = (replace(o, offset=o.offset + first * o.strides[0]) for o in self.operands)
        return replace(self, operands=tuple(moved))


@dataclass(frozen=True)
class GemmProblem:
    """y[batch, m, n] = epilogue(sum over k of a[batch, m, k] b[batch, k, n]); y is row-major.

    Attributes:
        y: The result.
        dtype: Dtype of A, and of B unless `b_dtype` is set.
        batch: Sizes of the batch axes.
        m: Rows of A and y.
        n: Columns of B and y.
        k: Size of the summed axis.
        a: The left operand A.
        b: The right operand B; not read if `weights` is set.
        epilogue: Operations on the product before it is stored.
        accumulator: C type of the sum.
        a_dtype: 16-bit dtype that elements of A may be rounded to; None if A must not be rounded.
        b_dtype: Dtype of B if it differs from `dtype`, such as 16-bit weights; else None.
        weights: Quantized B, packed in the layout of the kernel; None if B is not quantized.
        y_offset: Offset of the result in y, in elements.
        n_varies: Whether N, the number of columns, depends on the input shapes of a call although
            the last dim of y does not.
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
    weights: QuantizedWeights | None = None
    n_varies: bool = False

    @property
    def right(self) -> DType:
        """Dtype of B."""
        return self.b_dtype or self.dtype

    @property
    def batches(self) -> int:
        return prod(self.batch)

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.m * self.n * self.k

    @property
    def result(self) -> BufferArg:
        """Kernel argument for the result: the tensor y, starting at element `y_offset`."""
        return BufferArg(self.y, self.y_offset)

    @property
    def args(self) -> dict[str, Any]:
        """Kernel arguments that all GEMM kernels have, by name: y, A, sizes and strides of A.

        The problem must have exactly two batch axes (see `merge`).
        """
        a_s0, a_s1, a_row, _ = self.a.strides
        sizes = {"M": self.m, "N": self.n, "K": self.k, "d1": self.batch[1]}
        strides = {"a_s0": a_s0, "a_s1": a_s1, "a_row": a_row}
        rows = _rows(self.k, strides) if self.a.by_rows else None
        return {"y": self.result, "a": replace(self.a.buffer, rows=rows), **sizes, **strides}

    @property
    def a_in_octets(self) -> BufferArg:
        """Kernel argument for A if the kernel reads it in vectors of 8 elements."""
        a: BufferArg = self.args["a"]
        return a if a.rows is None else replace(a, rows=replace(a.rows, requires_vec8=True))

    @property
    def b_defines(self) -> dict[str, Define]:
        """Macros for the element type and layout of B."""
        if self.weights is not None:
            return {"B_T": DType.UINT8.cl, **self.weights.defines}
        return {"B_T": self.right.cl, "B_STORAGE": self.right.storage}

    @property
    def strided_args(self) -> dict[str, Any]:
        """All arguments, by name, of kernels that read A and B in place by strides.

        The arguments of the epilogue are included.
        """
        b_s0, b_s1, b_k, b_n = self.b.strides
        strides = {"a_k": self.a.strides[-1], "b_s0": b_s0, "b_s1": b_s1, "b_k": b_k, "b_n": b_n}
        b = {"b": self.b.buffer} if self.weights is None else self.weights.args(self.n)
        return {**self.args, **b, **strides, **self.epilogue.args}

    @property
    def is_empty(self) -> bool:
        return self.batches * self.m * self.n == 0


def _rows(width: int, strides: Mapping[str, int]) -> RowPitchSupport:
    """Declares that a launch accesses a tensor by rows of `width` elements, which may have a pitch.

    Args:
        strides: Stride arguments by name; multiples of `width` step from row to row.
    """
    return RowPitchSupport(width, tuple(n for n, s in strides.items() if s and not s % width))


def epilogue_operand_fits(extra: Shape | None, out: Shape | None) -> bool:
    """Returns whether the epilogue of a GEMM can read an operand.

    The operand must broadcast to the product's shape. For a product of more than four axes, the
    axes of the operand before the last one must either all be 1, or all equal the product's.
    Unknown shapes do not fit.

    Args:
        extra: Shape of the operand, which may be symbolic; None if unknown.
        out: Shape of the product, which may be symbolic; None if unknown.
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
    """Rewrites a GEMM to exactly two batch axes, by merging axes or else by copying A and B.

    Returns:
        Launches that copy operands, empty if axes merge without copies; and the rewritten GEMM.

    Raises:
        UnsupportedError: Operands of the epilogue, or a B that cannot be copied, need more than two
            batch axes.
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
    """Merges batch axes of a GEMM with each other, and with the rows if all of them share B."""
    a, b, operands = product.a.strides, product.b.strides, product.epilogue.operands
    dims, strides = collapse(
        (*product.batch, product.m),
        a[:-1],
        (*b[:-2], 0),
        *(o.strides for o in operands),
    )
    # `collapse` drops axes of size 1, so the last axis may be a batch axis along which B varies.
    # Such an axis is not the rows: add one of size 1.
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
    """Copies A and B to contiguous buffers of all batch axes, materializing broadcasts.

    Returns:
        The copying launches, and the GEMM of the copies.
    """
    launches: list[Launch] = []
    views: list[MatrixOperand] = []
    for view, matrix in ((product.a, (product.m, product.k)), (product.b, (product.k, product.n))):
        launch, copy = _copy(view, (*product.batch, *matrix), product.dtype, ctx)
        launches += launch
        views.append(copy)
    return launches, replace(product, a=views[0], b=views[1])


def copy_a(product: GemmProblem, ctx: Lowering) -> tuple[list[Launch], GemmProblem]:
    """Copies A to contiguous rows; batch axes along which A is broadcast stay broadcast.

    Returns:
        The copying launches, and the GEMM of the copy.
    """
    strides = product.a.strides
    batch = tuple(1 if s == 0 else d for d, s in zip(product.batch, strides, strict=False))
    launches, copy = _copy(product.a, (*batch, product.m, product.k), product.dtype, ctx)
    batch_strides = tuple(0 if d == 1 else s for d, s in zip(batch, copy.strides, strict=False))
    return launches, replace(product, a=replace(copy, strides=(*batch_strides, *copy.strides[-2:])))


def _copy(
    view: MatrixOperand, shape: tuple[int, ...], dtype: DType, ctx: Lowering
) -> tuple[list[Launch], MatrixOperand]:
    """Returns launches that copy an operand to contiguous scratch memory, and the copy.

    Args:
        view: The operand.
        shape: Shape of the copy: batch axes, rows, columns. If it is empty, there are no launches.
        dtype: Dtype of the operand.
    """
    target = BufferArg(ctx.scratch(prod(shape), dtype))
    strides = contiguous_strides(shape)
    launches = copy_launches(ctx, view.buffer, target, dtype, shape, view.strides, strides)
    return [] if 0 in shape else launches, MatrixOperand(target, strides)


def image_chunks(
    images: int, image_bytes: int, ctx: Lowering
) -> Iterator[tuple[int, int, Lowering]]:
    """Yields chunks of images whose im2col buffer stays within a memory limit.

    Args:
        images: Number of images.
        image_bytes: Bytes of the im2col buffer per image.

    Yields:
        The first image of a chunk, its number of images (at least one), and the lowering for its
        launches; chunks share scratch memory.
    """
    chunk_bytes = ctx.thresholds(ImageChunks).columns_bytes
    size = max(chunk_bytes // max(image_bytes, 1), 1)
    scratches: list[Scratch] = []
    first = 0
    while first < images:
        yield first, min(size, images - first), ChunkLowering(ctx.caps, ctx.record, scratches)
        first += size

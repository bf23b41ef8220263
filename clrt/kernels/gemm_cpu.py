"""Matrix products by the kernel gemm_cpu, and what its launches do besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from clrt.device.caps import DeviceCaps
from clrt.errors import UnsupportedError
from clrt.ir.code import Define
from clrt.ir.graph import Value
from clrt.kernels.matrix_unit import UnitWork, pays, unit_defines
from clrt.kernels.panels import Panels
from clrt.kernels.product import MatrixView, Product, copy_a, merge
from clrt.kernels.row_norm import RowNorm, norm_flops
from clrt.kernels.spec import (
    Arg,
    BufferArg,
    KernelSpec,
    Launch,
    ceil_div,
    i32,
    pieces_per_group,
    round_up,
)
from clrt.kernels.tiles import is_whole, tile, width
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering

CPU = tuned(
    "gemm_cpu",
    {
        "T_MR": (3, 4, 6, 8, 12, 14),
        "T_NV": (1, 2, 3, 4),
        "T_VW": (4, 8, 16),
        "T_MC": (8, 32, 128),
        "T_KU": (1, 2, 4),
    },
    T_MR=4,
    T_NV=3,
    T_VW=8,
    T_MC=32,
    T_KU=2,
    T_KC=768,
    T_UP=4,  # panels that are split for the matrix unit at once; 0: it is not used
)
_PACKED_ROWS = 64  # to a work-item
_STRIPE = 16  # blocks of rows to a work-group, at most
_START = 0.1  # tiles of K = 384 in the time that it takes to start a work-group
_SPLIT = 4  # blocks of rows for each core, at most, where a product is split over k
_SPARED = 0.75  # of the time that a shorter last stripe takes less: cores wait for each other


def emit_cpu(product: Product, ctx: Lowering, norm: RowNorm | None = None) -> list[Launch]:
    """Register-blocked tiles of a work-group of one; B packed in panels, at load if constant.

    Args:
        norm: Of the rows of y, which is one matrix.

    Raises:
        UnsupportedError: The epilogue needs other types than float32, or walks too many axes.
    """
    if product.is_empty:
        return []
    kernel = _Kernel.of(product, ctx, norm.defines if norm else {})
    if norm is None:
        return [*kernel.setup, kernel.by_tiles(ctx)]
    # Each stripe of whole rows reads all of B: where rows are few, tiles share it out better. The
    # matrix unit would split it for each stripe.
    if not kernel.has_few_rows(ctx.caps) and not kernel.goes_by_unit(ctx.caps):
        return [*kernel.setup, kernel.by_rows(ctx.caps, norm, multiplies=True)]
    multiply = kernel.by_tiles(ctx, *norm.args, i32(1), i32(0))
    normalise = kernel.with_a(kernel.product.a, 0).by_rows(ctx.caps, norm)
    of_norm = {a.buffer for a in norm.args if isinstance(a, BufferArg)}
    of_product = {b for b in multiply.buffers if b not in of_norm and b is not product.y}
    return [
        *kernel.setup,
        replace(multiply, untouched=frozenset(of_norm)),
        replace(normalise, untouched=frozenset(of_product)),
    ]


def emit_before(product: Product, after: SplitProduct, ctx: Lowering) -> tuple[list[Launch], bool]:
    """A product as `emit_cpu` makes it, and the one that reads it where that pays.

    Returns:
        The launches, and whether they do the work of `after`, too.

    Raises:
        UnsupportedError: As `emit_cpu`.
    """
    if product.is_empty or not after.has_tiles_of(product, ctx):
        return emit_cpu(product, ctx), False
    kernel = _Kernel.of(product, ctx, after.defines)
    product = kernel.product
    split = after.split(kernel.panels, ctx) if product.batches == 1 else None
    if split is None:
        return [*kernel.setup, kernel.by_tiles(ctx, *after.idle_args)], False
    flops = product.flops + after.flops
    launch = kernel.launch(kernel.blocks, split.parts, flops, *split.args)
    return [*kernel.setup, launch, split.add_up], True


@dataclass(frozen=True)
class SplitK:
    """How a product is shared out among the work-groups that make its A.

    Attributes:
        parts: As many as these work-groups.
        args: What NEXT_INPUTS declares.
        add_up: The launch after theirs.
    """

    parts: int
    args: tuple[Arg, ...]
    add_up: Launch


@dataclass(frozen=True)
class SplitProduct:
    """A product of what another kernel makes, and the normalisation of its rows.

    It is split over k: where rows are few, each work-group of that kernel goes on with the columns
    of A that it has made (common/next_product.clh), and a second launch adds up these parts. So two
    launches do the work of three, and A stays in a core's cache.
    """

    kernel: _Kernel
    norm: RowNorm

    @classmethod
    def of(cls, product: Product, norm: RowNorm, ctx: Lowering) -> SplitProduct | None:
        """None where it cannot be split; which does not depend on the shapes of a call."""
        kernel = _Kernel.alone(product, ctx, norm.defines)
        return None if kernel is None else cls(kernel, norm)

    @property
    def defines(self) -> dict[str, Define]:
        """The macros of common/next_product.clh, for the kernel that makes A."""
        tunables = {t: self.kernel.tunables[t] for t in ("T_MR", "T_NV", "T_VW", "T_KU")}
        return {"NEXT": 1, **tunables, **self.kernel.product.b_defines}

    @property
    def lanes(self) -> int:
        """Of a vector."""
        return self.kernel.tunables["T_VW"]

    @property
    def flops(self) -> int:
        return self.kernel.product.flops

    def has_tiles_of(self, product: Product, ctx: Lowering) -> bool:
        """Whether one kernel can make both products."""
        same_tile = tile(CPU, product, ctx) == self.kernel.tunables
        return same_tile and product.b_defines == self.kernel.product.b_defines

    @property
    def idle_args(self) -> tuple[Arg, ...]:
        """What NEXT_INPUTS declares where the product is left to launches of its own."""
        unused = BufferArg(self.kernel.product.a.buffer.buffer)
        return (unused, unused, i32(0), i32(1))

    def span(self, pieces: int, ctx: Lowering) -> int:
        """How many of the pieces of A a work-group makes."""
        return ceil_div(pieces, ctx.caps.compute_units)

    def split(self, pieces: int, ctx: Lowering) -> SplitK | None:
        """A part for each core, since all are written and read again; None where it does not pay.

        Args:
            pieces: Into which the kernel that makes A can divide its columns.
        """
        kernel, product, units = self.kernel, self.kernel.product, ctx.caps.compute_units
        few = kernel.blocks <= min(_SPLIT * units, kernel.longest)  # a work-group has all of them
        if product.batches > 1 or not few or pieces < units:
            return None
        span = self.span(pieces, ctx)
        parts, wide = ceil_div(pieces, span), kernel.panels * width(kernel.tunables)
        sums = BufferArg(ctx.scratch(parts * product.m * wide))
        add_up = kernel.with_a(MatrixView(sums, (0, 0, wide, 1)), parts).by_rows(
            ctx.caps, self.norm
        )
        args = (sums, kernel.b, i32(product.n), i32(span))
        return SplitK(parts, args, replace(add_up, untouched=frozenset({kernel.b.buffer})))


@dataclass(frozen=True)
class Projection:
    """A product of which each work-group of the kernel that reads it can make its own columns.

    That kernel goes on with a product of what it makes: three nodes are one launch.
    """

    kernel: _Kernel

    @classmethod
    def of(cls, product: Product, after: SplitProduct, ctx: Lowering) -> Projection | None:
        """None where it cannot be so; which does not depend on the shapes of a call."""
        kernel = _Kernel.alone(product, ctx, {})
        return None if kernel is None or not after.has_tiles_of(product, ctx) else cls(kernel)

    @property
    def panel(self) -> int:
        """Columns that are made at once."""
        return width(self.kernel.tunables)

    @property
    def flops(self) -> int:
        return self.kernel.product.flops

    @property
    def defines(self) -> dict[str, Define]:
        """The macros of PROJECT (fused_attention.cl)."""
        whole = dict(self.kernel.spec.defines)["S_N_WHOLE"]
        return {"PROJECT": 1, "S_N_WHOLE": whole, **self.kernel.product.epilogue.defines}

    @property
    def args(self) -> tuple[Arg, ...]:
        """What PROJECT_INPUTS declares."""
        product = self.kernel.product
        y = BufferArg(product.y, product.y_offset)
        return (y, product.a.buffer, self.kernel.b, i32(product.k), *product.epilogue.args)

    @property
    def idle_args(self) -> tuple[Arg, ...]:
        """The same where the product has a launch of its own."""
        product = self.kernel.product
        unused = BufferArg(product.y)
        of_epilogue = (unused if isinstance(a, BufferArg) else a for a in product.epilogue.args)
        return (unused, unused, unused, i32(0), *of_epilogue)

    def idle(self, ctx: Lowering) -> Launch:
        """The launch of its own, with no work-group: other shapes need the kernel."""
        return replace(self.kernel.by_tiles(ctx), global_size=(0,))


@dataclass(frozen=True)
class _Kernel:
    """gemm_cpu for a product, whose A are whole rows.

    Attributes:
        b: B in panels.
        b_strides: By batch axis.
        setup: Launches that copy A or pack B.
    """

    spec: KernelSpec
    tunables: Mapping[str, int]
    product: Product
    b: BufferArg
    b_strides: tuple[int, int]
    setup: list[Launch]

    @classmethod
    def of(cls, product: Product, ctx: Lowering, defines: Mapping[str, Define]) -> _Kernel:
        """The kernel with further macros.

        Raises:
            UnsupportedError: As `emit_cpu`.
        """
        product.epilogue.check_vectors()
        tunables = tile(CPU, product, ctx)
        setup, product = merge(product, ctx)
        if product.k and product.a.strides[-1] != 1:
            copied, product = copy_a(product, ctx)
            setup += copied
        packing, b, b_strides = pack_b(product, width(tunables), ctx)
        macros = {
            **tunables,
            **product.epilogue.defines,
            "S_N_WHOLE": int(is_whole(product, tunables["T_VW"])),
            **product.b_defines,
            **unit_defines(tunables, ctx.caps),
            **defines,
        }
        spec = KernelSpec.of("matmul/gemm_cpu.cl", "gemm_cpu", **macros)
        return cls(spec, tunables, product, b, b_strides, [*setup, *packing])

    @classmethod
    def alone(
        cls, product: Product, ctx: Lowering, defines: Mapping[str, Define]
    ) -> _Kernel | None:
        """The kernel if one launch is all that it takes, whatever the shapes of a call."""
        b = product.b.buffer.buffer
        constant = isinstance(b, Value) and b.is_constant
        if not constant or len(product.batch) > 2 or not product.epilogue.vectorises:
            return None
        kernel = cls.of(product, ctx, defines)
        return None if kernel.setup else kernel

    @property
    def has_unit(self) -> bool:
        """Whether it can go by a matrix unit."""
        return self.spec.has("MATRIX_UNIT")

    @property
    def blocks(self) -> int:
        """Of rows, in a matrix."""
        return ceil_div(self.product.m, self.tunables["T_MR"])

    @property
    def panels(self) -> int:
        """Of columns."""
        return ceil_div(self.product.n, width(self.tunables))

    def has_few_rows(self, caps: DeviceCaps) -> bool:
        """Whether there are too few for each core to have some of its own."""
        return self.product.batches > 1 or self.blocks < 2 * caps.compute_units

    def with_a(self, a: MatrixView, k: int) -> _Kernel:
        """The kernel with another A, of which k are read."""
        return replace(self, product=replace(self.product, a=a, k=k))

    def goes_by_unit(self, caps: DeviceCaps) -> bool:
        """Whether there is a matrix unit, and enough for it to do."""
        return self.has_unit and pays(self.product, caps)

    def by_tiles(self, ctx: Lowering, *more: Arg) -> Launch:
        """The product, a stripe of rows and a panel to a work-group, or by the matrix unit."""
        caps = ctx.caps
        if self.goes_by_unit(caps):
            work = UnitWork.of(self.product, self.tunables, caps)
            words = BufferArg(ctx.scratch(work.groups * work.slot))
            unit: tuple[Arg, ...] = (words, *(i32(v) for v in work.numbers))
            return self.launch(work.height, work.groups, self.product.flops, *more, unit=unit)
        panels = self.panels * self.product.batches
        most = pieces_per_group(self.blocks * panels, self.longest, caps)
        height = _stripe(self.blocks, panels, most, caps.compute_units)
        groups = ceil_div(self.blocks, height) * panels
        return self.launch(height, groups, self.product.flops, *more)

    def by_rows(self, caps: DeviceCaps, norm: RowNorm, multiplies: bool = False) -> Launch:
        """The normalisation of the product, or else of the sum of k parts in A, or where k is 0 of
        what y has; whole rows to a work-group.
        """
        rows, flops = self.product.batches * self.product.m, self.product.flops * multiplies
        blocks = ceil_div(rows, self.tunables["T_MR"])
        height = _stripe(blocks, 1, self.longest, caps.compute_units)
        flops += norm_flops(rows, self.product.n)
        more = (*norm.args, i32(multiplies), i32(1))
        as_one = replace(self, product=replace(self.product, m=rows))
        return as_one.launch(height, ceil_div(blocks, height), flops, *more)

    def launch(
        self, height: int, groups: int, flops: int, *more: Arg, unit: tuple[Arg, ...] = ()
    ) -> Launch:
        """One with `height` blocks of rows to a work-group, or rows with `unit`."""
        product = self.product
        if self.has_unit and not unit:
            unit = (product.a.buffer, *[i32(0)] * len(UnitWork.NUMBERS))
        a0, a1, a_row, _ = product.a.strides
        numbers = (product.m, product.n, product.k, height, product.batch[1], a0, a1, a_row)
        args: tuple[Arg, ...] = (
            BufferArg(product.y, product.y_offset),
            product.a.buffer,
            self.b,
            *(i32(v) for v in (*numbers, *self.b_strides)),
            *product.epilogue.args,
            *more,
            *unit,
        )
        return Launch(self.spec, (groups,), (1,), args, flops)

    @property
    def longest(self) -> int:
        """Blocks of rows to a work-group, at most."""
        return min(_STRIPE, self.tunables["T_MC"])


def _stripe(blocks: int, panels: int, most: int, units: int) -> int:
    """Blocks of rows to a work-group, from half of `most` on, so that all cores end together."""

    def tiles_of_a_core(height: int) -> float:
        stripes = ceil_div(blocks, height)
        lacking = height - blocks / stripes
        return ceil_div(stripes * panels, units) * (height - _SPARED * lacking + _START)

    most = min(most, blocks)
    return min(range(most, ceil_div(most, 2) - 1, -1), key=tiles_of_a_core)


def packed_width(product: Product, ctx: Lowering) -> int:
    """Columns of a panel of B as `emit_cpu` reads it."""
    return width(tile(CPU, product, ctx))


def pack_b(
    product: Product, panel: int, ctx: Lowering
) -> tuple[list[Launch], BufferArg, tuple[int, int]]:
    """B in panels: the launches that pack it, the buffer, and its strides by batch axis."""
    s0, s1, s_k, s_n = product.b.strides
    n, k = product.n, product.k
    columns = round_up(n, panel)
    source = product.b.buffer
    if product.b.in_panels:
        return [], source, (s0, s1)
    constant = source.buffer
    # Packed once where B is the constant as it lies; another view of it is packed at each run.
    by_rows = (s_n == 1 or n == 1) and (s_k == n or k == 1)
    as_it_lies = by_rows or ((s_k == 1 or k == 1) and (s_n == k or n == 1))
    if (
        as_it_lies
        and source.offset == 0
        and isinstance(constant, Value)
        and constant.is_constant
        and constant.has_numbers
    ):
        packed = Panels(k, n, panel, s_n != 1).of(constant)
        scale, size = columns * k, max(n * k, 1)
        return [], BufferArg(packed), (s0 // size * scale, s1 // size * scale)
    if product.right is not product.dtype:
        raise UnsupportedError(f"B in {product.right} is no constant as it lies")
    own = tuple(1 if s == 0 else d for d, s in zip(product.batch, (s0, s1), strict=True))
    target = BufferArg(ctx.scratch(prod(own) * columns * k))
    strides = (0 if s0 == 0 else own[1] * columns * k, 0 if s1 == 0 else columns * k)
    if k == 0:
        return [], target, strides
    numbers = (n, k, panel, columns, own[1], s0, s1, s_k, s_n)
    kernel = KernelSpec.of("matmul/pack_panels.cl", "pack_panels", ROWS=_PACKED_ROWS)
    args: tuple[Arg, ...] = (target, source, *(i32(v) for v in numbers))
    grid = (columns // panel, ceil_div(k, _PACKED_ROWS), prod(own))
    return [Launch(kernel, grid, (1, 1, 1), args)], target, strides

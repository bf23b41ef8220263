"""Matrix products by the kernel gemm_cpu, and the normalisation of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from clrt.device.caps import DeviceCaps
from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Define
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.symbolic_trace import pure
from clrt.kernels.gemm_problem import GemmProblem, MatrixOperand, copy_a, merge
from clrt.kernels.gemm_split_float_cpu import UnitShares, UnitWork, unit_of
from clrt.kernels.gemm_tile import is_whole, panel_width, select_tile
from clrt.kernels.panel_layout import PACKED_ROWS, Panels
from clrt.kernels.row_norm import RowNorm, norm_flops
from clrt.kernels.spec import (
    Buffer,
    BufferArg,
    KernelSpec,
    Launch,
    RowPitchSupport,
    chunks_per_group,
    launch,
    unread_arg,
)
from clrt.kernels.thresholds import Thresholds
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div, round_up

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


@dataclass(frozen=True)
class GemmPartitionThresholds(Thresholds):
    """How a product is shared out among the cores.

    Attributes:
        stripe: Blocks of rows to a work-group, at most.
        start_percent: Of a tile of K = 384: the time that it takes to start a work-group.
        spared_percent: Of the time that a shorter last stripe takes less: cores wait for others.
        split: Blocks of rows for each core, at most, where a product is split over k.
    """

    stripe: int
    start_percent: int
    spared_percent: int
    split: int

    group: ClassVar = "gemm_shares"

    def height(self, blocks: int, panels: int, most: int, caps: DeviceCaps) -> int:
        """Blocks of rows to a work-group, at least half of `most`: all cores end together."""
        costs = self.start_percent, self.spared_percent
        return _height(blocks, panels, most, caps.compute_units, *costs)


def emit_cpu(product: GemmProblem, ctx: Lowering, norm: RowNorm | None = None) -> list[Launch]:
    """Register-blocked tiles of a work-group of one; B packed in panels, at load if constant.

    Args:
        norm: Of the rows of y, which is one matrix.

    Raises:
        UnsupportedError: The epilogue needs other types than float32, or walks too many axes.
    """
    if product.is_empty:
        return []
    kernel = GemmKernel.of(product, ctx, norm.defines if norm else {})
    launches = [kernel.by_tiles(ctx)] if norm is None else kernel.with_norm(ctx, norm)
    return [*kernel.setup, *launches]


def placeholder_args(args: Mapping[str, Any], worked_on: Buffer) -> dict[str, Any]:
    """Arguments that a launch does not look at: a buffer that it works on in place of tensors."""
    numbers, other = (int, float), unread_arg(worked_on)
    return {name: a if isinstance(a, numbers) else other for name, a in args.items()}


@dataclass(frozen=True)
class GemmKernel:
    """gemm_cpu for a product, whose A are whole rows.

    Attributes:
        b: B in panels.
        b_strides: By batch axis.
        setup: Launches that copy A or pack B.
        unit: By what many rows go.
    """

    spec: KernelSpec
    tunables: Mapping[str, int]
    product: GemmProblem
    b: BufferArg
    b_strides: tuple[int, int]
    setup: list[Launch]
    shares: GemmPartitionThresholds
    unit: UnitShares | None

    @classmethod
    def of(cls, product: GemmProblem, ctx: Lowering, defines: Mapping[str, Define]) -> GemmKernel:
        """The kernel with further macros.

        Raises:
            UnsupportedError: As `emit_cpu`.
        """
        product.epilogue.check_vectors()
        tunables = select_tile(CPU, product, ctx)
        setup, product = merge(product, ctx)
        if product.k and product.a.strides[-1] != 1:
            copied, product = copy_a(product, ctx)
            setup += copied
        packing, b, b_strides = pack_b(product, panel_width(tunables), ctx)
        unit = unit_of(product, tunables, ctx.caps)
        macros = {
            **tunables,
            **product.epilogue.defines,
            "S_N_WHOLE": int(is_whole(product, tunables["T_VW"])),
            **product.b_defines,
            **(unit.defines(ctx.caps) if unit else {}),
            **defines,
        }
        spec = KernelSpec.of("matmul/gemm_cpu.cl", "gemm_cpu", **macros)
        setup += packing
        shares = ctx.thresholds(GemmPartitionThresholds)
        unit_shares = None if unit is None else ctx.thresholds(unit)
        return cls(spec, tunables, product, b, b_strides, setup, shares, unit_shares)

    @classmethod
    def alone(
        cls, product: GemmProblem, ctx: Lowering, defines: Mapping[str, Define]
    ) -> GemmKernel:
        """The kernel if one launch is all that it takes, whatever the shapes of a call.

        Raises:
            UnsupportedError: It takes more, or as `emit_cpu`.
        """
        b = product.b.buffer.buffer
        if not (isinstance(b, Value) and b.is_constant):
            raise UnsupportedError("B is computed")
        if len(product.batch) > 2:
            raise UnsupportedError(f"the product walks {len(product.batch)} batch axes")
        kernel = cls.of(product, ctx, defines)
        if kernel.setup:
            raise UnsupportedError("A or B must be copied first")
        return kernel

    @property
    def blocks(self) -> int:
        """Of rows, in a matrix."""
        return ceil_div(self.product.m, self.tunables["T_MR"])

    @property
    def panels(self) -> int:
        """Of columns."""
        return ceil_div(self.product.n, panel_width(self.tunables))

    def has_few_rows(self, caps: DeviceCaps) -> bool:
        """Whether there are too few for each core to have some of its own."""
        return self.product.batches > 1 or self.blocks < 2 * caps.compute_units

    def with_a(self, a: MatrixOperand, k: int) -> GemmKernel:
        """The kernel with another A, of which k are read."""
        return replace(self, product=replace(self.product, a=a, k=k))

    def goes_by_unit(self, caps: DeviceCaps) -> bool:
        """Whether there is a unit, and enough for it to do."""
        return self.unit is not None and self.unit.pays(self.product, caps)

    def by_tiles(self, ctx: Lowering, **more: Any) -> Launch:
        """The product, a stripe of rows and a panel to a work-group, or by the matrix unit."""
        caps = ctx.caps
        if self.unit is not None and self.goes_by_unit(caps):
            work = UnitWork.of(self.product, self.tunables, self.unit, caps)
            more |= {"words": ctx.scratch(work.groups * work.slot), **work.numbers}
            return self.launch(work.height, work.groups, self.product.flops, **more)
        panels = self.panels * self.product.batches
        most = chunks_per_group(self.blocks * panels, self.longest, caps)
        height = self.shares.height(self.blocks, panels, most, caps)
        groups = ceil_div(self.blocks, height) * panels
        return self.launch(height, groups, self.product.flops, **more)

    def with_norm(self, ctx: Lowering, norm: RowNorm) -> list[Launch]:
        """The product, which is one matrix, and the normalisation of its rows."""
        # Each stripe of whole rows reads all of B: where rows are few, tiles share it out better.
        # The matrix unit would split it for each stripe.
        if not self.has_few_rows(ctx.caps) and not self.goes_by_unit(ctx.caps):
            return [self.by_rows(ctx.caps, norm, multiplies=True)]
        idle = placeholder_args(norm.args, self.product.y)
        multiply = self.by_tiles(ctx, **idle, multiplies=1, normalizes=0)
        return [multiply, self._without_inputs().by_rows(ctx.caps, norm)]

    def _without_inputs(self) -> GemmKernel:
        """The kernel for a launch that only normalises y: it names no input of the product."""
        product, y = self.product, self.product.y
        assert isinstance(y, Value)
        operands = tuple(replace(o, value=y) for o in product.epilogue.operands)
        epilogue = replace(product.epilogue, operands=operands)
        a = replace(product.a, buffer=unread_arg(y))
        return replace(self, b=unread_arg(y), product=replace(product, a=a, k=0, epilogue=epilogue))

    def by_rows(self, caps: DeviceCaps, norm: RowNorm, multiplies: bool = False) -> Launch:
        """The normalisation of the product, or else of the sum of k parts in A, or where k is 0 of
        what y has; whole rows to a work-group.
        """
        rows, flops = self.product.batches * self.product.m, self.product.flops * multiplies
        blocks = ceil_div(rows, self.tunables["T_MR"])
        height = self.shares.height(blocks, 1, self.longest, caps)
        flops += norm_flops(rows, self.product.n)
        more = {**norm.args, "multiplies": int(multiplies), "normalizes": 1}
        as_one = replace(self, product=replace(self.product, m=rows))
        return as_one.launch(height, ceil_div(blocks, height), flops, **more)

    def launch(self, height: int, groups: int, flops: int, **more: Any) -> Launch:
        """One with `height` blocks of rows to a work-group, or rows by the matrix unit.

        Args:
            more: What ROW_INPUTS, NEXT_INPUTS and, for the matrix unit, UNIT_INPUTS declare.
        """
        product = self.product
        if self.unit is not None and "words" not in more:
            more |= {"words": unread_arg(product.y), **dict.fromkeys(UnitWork.NUMBERS, 0)}
        b = {"b": self.b, "b_s0": self.b_strides[0], "b_s1": self.b_strides[1]}
        args = product.args | b | product.epilogue.args | more | {"y_pitch": product.n}
        if not any(self.spec.has(macro) for macro in ("NORM", "NEXT")) and not product.y_offset:
            args["y"] = replace(product.result, rows=RowPitchSupport(product.n, ("y_pitch",)))
        return launch(self.spec, (groups,), (1,), flops, height=height, **args)

    @property
    def longest(self) -> int:
        """Blocks of rows to a work-group, at most."""
        return min(self.shares.stripe, self.tunables["T_MC"])


@pure
def _height(blocks: int, panels: int, most: int, units: int, start: int, spared: int) -> int:
    def tiles_of_a_core(height: int) -> float:
        stripes = ceil_div(blocks, height)
        lacking = height - blocks / stripes
        return ceil_div(stripes * panels, units) * (height - spared / 100 * lacking + start / 100)

    most = min(most, blocks)
    return min(range(most, ceil_div(most, 2) - 1, -1), key=tiles_of_a_core)


def packed_width(product: GemmProblem, ctx: Lowering) -> int:
    """Columns of a panel of B as `emit_cpu` reads it."""
    return panel_width(select_tile(CPU, product, ctx))


def pack_b(
    product: GemmProblem, panel: int, ctx: Lowering
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
    target = BufferArg(ctx.scratch(prod(own) * columns * k, product.dtype))
    strides = (0 if s0 == 0 else own[1] * columns * k, 0 if s1 == 0 else columns * k)
    if k == 0:
        return [], target, strides
    sizes = {"N": n, "K": k, "width": panel, "columns": columns, "d1": own[1]}
    steps = {"s0": s0, "s1": s1, "s_k": s_k, "s_n": s_n}
    words = {} if product.dtype is DType.FLOAT32 else {"DATA_T": product.dtype.cl_bits}
    kernel = KernelSpec.of("matmul/pack_panels.cl", "pack_panels", ROWS=PACKED_ROWS, **words)
    grid = (columns // panel, ceil_div(k, PACKED_ROWS), prod(own))
    packing = launch(kernel, grid, (1, 1, 1), y=target, x=source, **sizes, **steps)
    return [packing], target, strides

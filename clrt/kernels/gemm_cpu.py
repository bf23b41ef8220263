"""CPU GEMM by the kernel gemm_cpu, with an optional normalization of the result's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

from clrt.device.caps import DeviceCaps
from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Define
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.kernels.gemm_problem import GemmProblem, MatrixOperand, copy_a, merge
from clrt.kernels.gemm_split_float_cpu import SplitFloatThresholds, SplitFloatWork, unit_of
from clrt.kernels.gemm_tile import is_whole, panel_width, select_tile
from clrt.kernels.panel_layout import PACKED_ROWS, Panels
from clrt.kernels.row_norm import RowNorm, norm_flops
from clrt.kernels.size_formulas import balanced_height
from clrt.kernels.spec import (
    Buffer,
    BufferArg,
    KernelSpec,
    Launch,
    RowPitchSupport,
    launch,
    unread_arg,
)
from clrt.kernels.thresholds import Thresholds, Tunable, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.util.fast_dataclass import dataclass
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
    T_KC=Tunable(
        768, "elements of K", "Depth split into terms at a time, so that it stays in cache."
    ),
    T_UP=Tunable(
        4, "panels of B", "Panels split into terms at a time; 0 disables the split-float paths."
    ),
)


class GemmPartitionThresholds(Thresholds):
    """Parameters of the partition of a GEMM over CPU cores. A block is T_MR rows."""

    stripe: int = tunable(
        16, "row blocks", "Maximum per work-group: more would leave cores idle at the end."
    )
    start_percent: int = tunable(
        10, "percent", "Time to start a work-group, relative to that of one tile with K = 384."
    )
    spared_percent: int = tunable(
        75,
        "percent",
        "Credited part of the time that a shorter last stripe saves: its core then waits "
        "for the others.",
    )
    split: int = tunable(4, "row blocks per core", "Maximum of a GEMM that is split over K.")

    group: ClassVar = "gemm_shares"

    def height(self, blocks: int, panels: int, most: int, caps: DeviceCaps) -> int:
        """Returns the number of row blocks per work-group, so that all cores finish together.

        Args:
            blocks: Row blocks of the result.
            panels: Panels of B times batches.
            most: Maximum number of row blocks per work-group. The result is at least half of this
                number, or half of `blocks` if that is less.
        """
        costs = self.start_percent, self.spared_percent
        return balanced_height(blocks, panels, most, caps.compute_units, *costs)


def emit_cpu(product: GemmProblem, ctx: Lowering, norm: RowNorm | None = None) -> list[Launch]:
    """Returns the launches of a register-blocked CPU GEMM, with one work-item per work-group.

    B is packed in panels: a constant B at load, a computed B by a launch.

    Args:
        norm: Normalization of the rows of y, which must then be a single matrix; None for none.

    Raises:
        UnsupportedError: The epilogue needs other types than float32, or has more than two batch
            axes; or B has another dtype than A and is not a contiguous constant.
    """
    if product.is_empty:
        return []
    kernel = GemmKernel.of(product, ctx, norm.defines if norm else {})
    launches = [kernel.by_tiles(ctx)] if norm is None else kernel.with_norm(ctx, norm)
    return [*kernel.setup, *launches]


def placeholder_args(args: Mapping[str, Any], accessed: Buffer) -> dict[str, Any]:
    """Returns arguments for a launch that does not access their tensors.

    Each tensor is replaced by a placeholder.

    Args:
        args: The arguments by name; numbers are kept.
        accessed: Buffer to pass as the placeholder: one that the launch already has as another
            argument.
    """
    numbers, placeholder = (int, float), unread_arg(accessed)
    return {name: a if isinstance(a, numbers) else placeholder for name, a in args.items()}


@dataclass(frozen=True)
class GemmKernel:
    """The kernel gemm_cpu for one GEMM, with contiguous rows of A and B in panels.

    Attributes:
        spec: The kernel.
        tunables: Tunables of the kernel.
        product: The GEMM.
        b: B in panels.
        b_strides: Strides of B's two batch axes, in elements.
        setup: Launches that copy A or pack B.
        shares: Parameters of the partition over cores.
        unit: Thresholds of the split-float path that computes large products, by AMX or int16
            dots; None if there is none for the device and the operands.
    """

    spec: KernelSpec
    tunables: Mapping[str, int]
    product: GemmProblem
    b: BufferArg
    b_strides: tuple[int, int]
    setup: list[Launch]
    shares: GemmPartitionThresholds
    unit: SplitFloatThresholds | None

    @classmethod
    def of(cls, product: GemmProblem, ctx: Lowering, defines: Mapping[str, Define]) -> GemmKernel:
        """Returns the kernel gemm_cpu for a GEMM, with the launches that copy or pack its operands.

        Args:
            product: The GEMM.
            defines: Additional macros of the kernel.

        Raises:
            UnsupportedError: The epilogue needs other types than float32, or has more than two
                batch axes; or B has another dtype than A and is not a contiguous constant.
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
        """Returns the kernel gemm_cpu for a GEMM that needs no launch before it.

        Success does not depend on the input shapes of a call.

        Args:
            product: The GEMM.
            defines: Additional macros of the kernel.

        Raises:
            UnsupportedError: B is computed; A or B must be copied first; there are more than two
                batch axes; or the epilogue needs other types than float32.
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
        """Number of row blocks (T_MR rows) per matrix of the result."""
        return ceil_div(self.product.m, self.tunables["T_MR"])

    @property
    def panels(self) -> int:
        """Number of panels that B is divided into."""
        return ceil_div(self.product.n, panel_width(self.tunables))

    def has_few_rows(self, caps: DeviceCaps) -> bool:
        """Returns whether there are fewer than two row blocks per core, or a batch of matrices."""
        return self.product.batches > 1 or self.blocks < 2 * caps.compute_units

    def with_a(self, a: MatrixOperand, k: int) -> GemmKernel:
        """Returns this kernel with another A.

        Args:
            a: The new A.
            k: Columns of the new A.
        """
        return replace(self, product=replace(self.product, a=a, k=k))

    def goes_by_unit(self, caps: DeviceCaps) -> bool:
        """Returns whether a split-float path (AMX, int16 dots) exists and is faster."""
        return self.unit is not None and self.unit.pays(self.product, caps)

    def by_tiles(self, ctx: Lowering, **more: Any) -> Launch:
        """Returns the launch of the GEMM, with a stripe of rows and a panel of B per work-group.

        If a split-float path (AMX, int16 dots) exists and is faster, the launch uses that path.

        Args:
            more: Arguments of the kernel's macros ROW_INPUTS and FUSED_GEMM_PARAMS.
        """
        caps = ctx.caps
        if self.unit is not None and self.goes_by_unit(caps):
            work = SplitFloatWork.of(self.product, self.tunables, self.unit, caps)
            more |= {"words": ctx.scratch(work.groups * work.slot), **work.numbers}
            return self.launch(work.height, work.groups, self.product.flops, **more)
        panels = self.panels * self.product.batches
        most = ctx.chunks_per_group(self.blocks * panels, self.longest)
        height = self.shares.height(self.blocks, panels, most, caps)
        groups = ceil_div(self.blocks, height) * panels
        return self.launch(height, groups, self.product.flops, **more)

    def with_norm(self, ctx: Lowering, norm: RowNorm) -> list[Launch]:
        """Returns launches of the GEMM, a single matrix, and of the normalization of its rows.

        With enough rows there is one launch with whole rows per work-group, else two launches.
        """
        # A work-group with whole rows reads all of B. With few rows, tiles divide these reads among
        # cores; and the split-float path would split all of B into terms once per work-group.
        if not self.has_few_rows(ctx.caps) and not self.goes_by_unit(ctx.caps):
            return [self.by_rows(ctx.caps, norm, multiplies=True)]
        unread = placeholder_args(norm.args, self.product.y)
        multiply = self.by_tiles(ctx, **unread, multiplies=1, normalizes=0)
        return [multiply, self._without_inputs().by_rows(ctx.caps, norm)]

    def _without_inputs(self) -> GemmKernel:
        """Returns a copy of this kernel for the second launch of `with_norm`, which normalizes y.

        The second launch does not multiply, so it reads neither A nor B nor epilogue operands; y is
        passed in place of these arguments.
        """
        product, y = self.product, self.product.y
        assert isinstance(y, Value)
        operands = tuple(replace(o, value=y) for o in product.epilogue.operands)
        epilogue = replace(product.epilogue, operands=operands)
        a = replace(product.a, buffer=unread_arg(y))
        return replace(self, b=unread_arg(y), product=replace(product, a=a, k=0, epilogue=epilogue))

    def by_rows(self, caps: DeviceCaps, norm: RowNorm, multiplies: bool = False) -> Launch:
        """Returns a launch that normalizes rows, with whole rows per work-group.

        Args:
            norm: The normalization.
            multiplies: Whether to normalize the result of the GEMM. If False, A holds `product.k`
                partial products, and the launch normalizes their sum; if `product.k` is 0, it
                normalizes the contents of y.
        """
        rows, flops = self.product.batches * self.product.m, self.product.flops * multiplies
        blocks = ceil_div(rows, self.tunables["T_MR"])
        height = self.shares.height(blocks, 1, self.longest, caps)
        flops += norm_flops(rows, self.product.n)
        more = {**norm.args, "multiplies": int(multiplies), "normalizes": 1}
        single_matrix = replace(self, product=replace(self.product, m=rows))
        return single_matrix.launch(height, ceil_div(blocks, height), flops, **more)

    def launch(self, height: int, groups: int, flops: int, **more: Any) -> Launch:
        """Returns a launch of the kernel gemm_cpu.

        Args:
            height: Blocks of T_MR rows per work-group; number of rows instead, if the split-float
                path is used.
            groups: Number of work-groups.
            flops: Floating-point operations, for the profile.
            more: Arguments of the kernel's macros ROW_INPUTS, FUSED_GEMM_PARAMS and, if the
                split-float path is used, MMA_INPUTS.
        """
        product = self.product
        if self.unit is not None and "words" not in more:
            more |= {"words": unread_arg(product.y), **dict.fromkeys(SplitFloatWork.NUMBERS, 0)}
        b = {"b": self.b, "b_s0": self.b_strides[0], "b_s1": self.b_strides[1]}
        args = product.args | b | product.epilogue.args | more | {"y_pitch": product.n}
        if (
            not any(self.spec.has(macro) for macro in ("FUSE_NORM", "FUSED_GEMM"))
            and not product.y_offset
        ):
            args["y"] = replace(product.result, rows=RowPitchSupport(product.n, ("y_pitch",)))
        return launch(self.spec, (groups,), (1,), flops, height=height, **args)

    @property
    def longest(self) -> int:
        """Maximum number of row blocks per work-group."""
        return min(self.shares.stripe, self.tunables["T_MC"])


def packed_width(product: GemmProblem, ctx: Lowering) -> int:
    """Returns the number of columns per panel in which `emit_cpu` reads B."""
    return panel_width(select_tile(CPU, product, ctx))


def pack_b(
    product: GemmProblem, panel: int, ctx: Lowering
) -> tuple[list[Launch], BufferArg, tuple[int, int]]:
    """Packs B of a CPU GEMM in panels.

    Args:
        product: The GEMM.
        panel: Columns per panel.

    Returns:
        Launches that pack B, empty if it is packed at load; the packed buffer; and its strides
        along the two batch axes, in elements.

    Raises:
        UnsupportedError: B is computed, or a strided view of a constant, in another dtype than A.
    """
    s0, s1, s_k, s_n = product.b.strides
    n, k = product.n, product.k
    columns = round_up(n, panel)
    source = product.b.buffer
    if product.b.in_panels:
        return [], source, (s0, s1)
    constant = source.buffer
    # A contiguous constant, transposed or not, is packed once at load; any other B in each run.
    row_major = (s_n == 1 or n == 1) and (s_k == n or k == 1)
    is_contiguous = row_major or ((s_k == 1 or k == 1) and (s_n == k or n == 1))
    if (
        is_contiguous
        and source.offset == 0
        and isinstance(constant, Value)
        and constant.is_constant
        and constant.has_numbers
    ):
        packed = Panels(k, n, panel, s_n != 1).of(constant)
        scale, size = columns * k, max(n * k, 1)
        return [], BufferArg(packed), (s0 // size * scale, s1 // size * scale)
    if product.right is not product.dtype:
        raise UnsupportedError(f"B in {product.right} is not a contiguous constant")
    batch = tuple(1 if s == 0 else d for d, s in zip(product.batch, (s0, s1), strict=True))
    target = BufferArg(ctx.scratch(prod(batch) * columns * k, product.dtype))
    strides = (0 if s0 == 0 else batch[1] * columns * k, 0 if s1 == 0 else columns * k)
    if k == 0:
        return [], target, strides
    sizes = {"N": n, "K": k, "width": panel, "columns": columns, "d1": batch[1]}
    b_strides = {"s0": s0, "s1": s1, "s_k": s_k, "s_n": s_n}
    data_t = {} if product.dtype is DType.FLOAT32 else {"DATA_T": product.dtype.cl_bits}
    kernel = KernelSpec.of("matmul/pack_panels.cl", "pack_panels", ROWS=PACKED_ROWS, **data_t)
    grid = (columns // panel, ceil_div(k, PACKED_ROWS), prod(batch))
    packing = launch(kernel, grid, (1, 1, 1), y=target, x=source, **sizes, **b_strides)
    return [packing], target, strides

"""CPU kernels that compute two dependent GEMMs in one launch, around gemm_cpu.

`ChainedGemm` splits the second GEMM over K, its summed axis. `InlineProjection` computes the first
GEMM in the work-groups of the kernel that reads its result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Define
from clrt.kernels.cost import rates_of
from clrt.kernels.gemm_cpu import CPU, GemmKernel, placeholder_args
from clrt.kernels.gemm_problem import GemmProblem, MatrixOperand
from clrt.kernels.gemm_tile import panel_width, select_tile
from clrt.kernels.row_norm import RowNorm
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, unread_arg
from clrt.kernels.variant import Lowering
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div


@dataclass(frozen=True)
class SplitK:
    """Split-K of a GEMM: each work-group that computes a part of A also multiplies it by B.

    Attributes:
        parts: Number of splits: one per work-group of the kernel that computes A.
        args: Arguments of the macro FUSED_GEMM_PARAMS, for the kernel that computes A.
        add_up: The later launch that sums the partial products.
    """

    parts: int
    args: dict[str, Any]
    add_up: Launch


@dataclass(frozen=True)
class ChainedGemm:
    """A GEMM whose A another kernel computes, and the normalization of the GEMM's rows.

    If A has few rows, the GEMM is computed by split-K (common/next_product.clh). Each work-group of
    the kernel that computes A multiplies its columns of A by the corresponding rows of B. A second
    launch sums the partial products and normalizes. This saves a launch and keeps A in the cache.

    Attributes:
        kernel: The kernel that computes the GEMM in separate launches.
        norm: Normalization of the GEMM's rows.
    """

    kernel: GemmKernel
    norm: RowNorm

    @classmethod
    def of(cls, product: GemmProblem, norm: RowNorm, ctx: Lowering) -> ChainedGemm:
        """Returns a GEMM to chain to the kernel that computes its A.

        Success does not depend on the input shapes of a call.

        Args:
            product: The GEMM.
            norm: Normalization of the GEMM's rows.

        Raises:
            UnsupportedError: The GEMM needs more than one launch, such as a copy of A; B is
                computed; or the epilogue needs other types than float32.
        """
        return cls(GemmKernel.alone(product, ctx, norm.defines), norm)

    def launches(self, ctx: Lowering) -> list[Launch]:
        """Returns separate launches of the GEMM and its normalization, without split-K."""
        return [] if self.kernel.product.is_empty else self.kernel.with_norm(ctx, self.norm)

    @property
    def defines(self) -> dict[str, Define]:
        """Macros of common/next_product.clh, for the kernel that computes A.

        With these macros, that kernel also computes this GEMM, by split-K.
        """
        tunables = {t: self.kernel.tunables[t] for t in ("T_MR", "T_NV", "T_VW", "T_KU")}
        return {"FUSED_GEMM": 1, **tunables, **self.kernel.product.b_defines}

    @property
    def lanes(self) -> int:
        """Elements per vector in the GEMM kernel (tunable T_VW)."""
        return self.kernel.tunables["T_VW"]

    @property
    def flops(self) -> int:
        return self.kernel.product.flops

    def check_tiles(self, product: GemmProblem, ctx: Lowering) -> None:
        """Checks that one kernel can compute both `product` and this GEMM.

        Args:
            product: Another GEMM.

        Raises:
            UnsupportedError: The two GEMMs differ in tiles or in the layout of B.
        """
        kernel = self.kernel
        if select_tile(CPU, product, ctx) != kernel.tunables:
            raise UnsupportedError(f"N {product.n} and {kernel.product.n} have different tiles")
        if product.b_defines != kernel.product.b_defines:
            raise UnsupportedError(f"B is {product.right} and {kernel.product.right}")

    @property
    def disabled_args(self) -> dict[str, Any]:
        """Arguments of FUSED_GEMM_PARAMS for a kernel that does not compute the chained GEMM."""
        unread = unread_arg(self.kernel.product.a.buffer.buffer)
        return {"parts": unread, "next_b": unread, "next_n": 0, "span": 1}

    def span(self, pieces: int, ctx: Lowering) -> int:
        """Returns the number of chunks of A's columns that each work-group computes.

        Args:
            pieces: Number of chunks (panels or heads) that the columns of A are divided into.
        """
        return ceil_div(pieces, ctx.caps.compute_units)

    def split(self, pieces: int, flops: int, ctx: Lowering) -> SplitK | None:
        """Returns a split-K of the GEMM with at most one split per core.

        Args:
            pieces: Number of chunks (panels or heads) into which the kernel that computes A can
                divide its columns.
            flops: Floating-point operations of that kernel, without this GEMM.

        Returns:
            The split-K; None for batches, for many rows of A, or if there are fewer chunks than
            cores and the idle cores cost more time than the launch that is saved.
        """
        kernel, product, units = self.kernel, self.kernel.product, ctx.caps.compute_units
        has_few_rows = kernel.blocks <= min(
            kernel.shares.split * units, kernel.longest
        )  # a work-group has all of them
        if product.batches > 1 or not has_few_rows:
            return None
        rates = rates_of(ctx.caps)
        spared = int(rates.launch_s * rates.flops) * pieces
        if pieces < units and (flops + self.flops) * (units - pieces) > spared:
            return None
        span = self.span(pieces, ctx)
        splits, columns = ceil_div(pieces, span), kernel.panels * panel_width(kernel.tunables)
        sums = BufferArg(ctx.scratch(splits * product.m * columns))
        view = MatrixOperand(sums, (0, 0, columns, 1))
        summing = replace(kernel.with_a(view, splits), b=unread_arg(sums.buffer))
        args = {"parts": sums, "next_b": kernel.b, "next_n": product.n, "span": span}
        return SplitK(splits, args, summing.by_rows(ctx.caps, self.norm))


@dataclass(frozen=True)
class InlineProjection:
    """A GEMM computed inside the kernel that reads its result.

    Each work-group of the reading kernel first computes the columns that it needs. As the kernel
    also computes a chained GEMM, one launch computes three nodes.

    Attributes:
        kernel: The kernel that computes the GEMM in a separate launch.
    """

    kernel: GemmKernel

    @classmethod
    def of(cls, product: GemmProblem, after: ChainedGemm, ctx: Lowering) -> InlineProjection:
        """Returns a GEMM to compute inline in the kernel that reads its result.

        Success does not depend on the input shapes of a call.

        Args:
            product: The GEMM.
            after: The chained GEMM of the consuming kernel.

        Raises:
            UnsupportedError: The GEMM needs a copy of A or B first, has a computed B, or needs
                other tiles than `after`.
        """
        kernel = GemmKernel.alone(product, ctx, {})
        after.check_tiles(product, ctx)
        return cls(kernel)

    def launches(self, ctx: Lowering) -> list[Launch]:
        """Returns the separate launch of the GEMM, for input shapes at which it is not inlined.

        It runs before the launches of the kernel that reads its result. [] if the result is empty.
        """
        return [] if self.kernel.product.is_empty else [self.kernel.by_tiles(ctx)]

    @property
    def spec(self) -> KernelSpec:
        """Kernel of the GEMM's separate launch."""
        return self.kernel.spec

    @property
    def panel(self) -> int:
        """Columns per panel of B: the GEMM is computed inline by whole panels."""
        return panel_width(self.kernel.tunables)

    @property
    def flops(self) -> int:
        return self.kernel.product.flops

    @property
    def defines(self) -> dict[str, Define]:
        """Macros with which the consuming kernel (fused_attention.cl) computes the GEMM inline."""
        n_whole = dict(self.kernel.spec.defines)["S_N_WHOLE"]
        return {
            "INLINE_PROJECTION": 1,
            "S_N_WHOLE": n_whole,
            **self.kernel.product.epilogue.defines,
        }

    @property
    def args(self) -> dict[str, Any]:
        """Arguments of the macro INLINE_PROJECTION_PARAMS of the consuming kernel."""
        product = self.kernel.product
        tensors = {"projected": product.result, "x": product.a.buffer, "project_b": self.kernel.b}
        return {**tensors, "depth": product.k, **product.epilogue.args}

    @property
    def disabled_args(self) -> dict[str, Any]:
        """Arguments of the macro INLINE_PROJECTION_PARAMS if the GEMM is not computed inline."""
        return {**placeholder_args(self.args, self.kernel.product.y), "depth": 0}


def emit_before(product: GemmProblem, after: ChainedGemm, ctx: Lowering) -> list[Launch]:
    """Returns launches of two GEMMs; A of the second GEMM is the result of the first.

    The second GEMM is computed by split-K if that is faster, else in separate launches.

    Args:
        product: The first GEMM; its result is A of `after`.
        after: The second GEMM.

    Raises:
        UnsupportedError: The epilogue needs other types than float32, or has more than two batch
            axes.
    """
    if product.is_empty:
        return after.launches(ctx)
    kernel = GemmKernel.of(product, ctx, after.defines)
    product = kernel.product
    split = after.split(kernel.panels, product.flops, ctx) if product.batches == 1 else None
    if split is None:
        return [*kernel.setup, kernel.by_tiles(ctx, **after.disabled_args), *after.launches(ctx)]
    flops = product.flops + after.flops
    launch = kernel.launch(kernel.blocks, split.parts, flops, **split.args)
    return [*kernel.setup, launch, split.add_up]

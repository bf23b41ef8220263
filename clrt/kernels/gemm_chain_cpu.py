"""Products that the kernels of several nodes share, around gemm_cpu: split over k, or projected."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Define
from clrt.kernels.gemm_cpu import CPU, GemmKernel, placeholder_args
from clrt.kernels.gemm_problem import GemmProblem, MatrixOperand
from clrt.kernels.gemm_tile import panel_width, select_tile
from clrt.kernels.row_norm import RowNorm
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, unread_arg
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div


@dataclass(frozen=True)
class SplitK:
    """How a product is shared out among the work-groups that make its A.

    Attributes:
        parts: As many as these work-groups.
        args: What NEXT_INPUTS declares.
        add_up: The launch after theirs.
    """

    parts: int
    args: dict[str, Any]
    add_up: Launch


@dataclass(frozen=True)
class ChainedGemm:
    """A product of what another kernel makes, and the normalisation of its rows.

    It is split over k: where rows are few, each work-group of that kernel goes on with the columns
    of A that it has made (common/next_product.clh), and a second launch adds up these parts. So two
    launches do the work of three, and A stays in a core's cache.
    """

    kernel: GemmKernel
    norm: RowNorm

    @classmethod
    def of(cls, product: GemmProblem, norm: RowNorm, ctx: Lowering) -> ChainedGemm:
        """The product, whatever the shapes of a call.

        Raises:
            UnsupportedError: It cannot be split.
        """
        return cls(GemmKernel.alone(product, ctx, norm.defines), norm)

    def launches(self, ctx: Lowering) -> list[Launch]:
        """Those of the product where it is not split."""
        return [] if self.kernel.product.is_empty else self.kernel.with_norm(ctx, self.norm)

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

    def check_tiles(self, product: GemmProblem, ctx: Lowering) -> None:
        """Checks that one kernel can make both products.

        Raises:
            UnsupportedError: It cannot.
        """
        kernel = self.kernel
        if select_tile(CPU, product, ctx) != kernel.tunables:
            raise UnsupportedError(f"N {product.n} and {kernel.product.n} have different tiles")
        if product.b_defines != kernel.product.b_defines:
            raise UnsupportedError(f"B is {product.right} and {kernel.product.right}")

    @property
    def disabled_args(self) -> dict[str, Any]:
        """What NEXT_INPUTS declares where the product is left to launches of its own."""
        idle = unread_arg(self.kernel.product.a.buffer.buffer)
        return {"parts": idle, "next_b": idle, "next_n": 0, "span": 1}

    def span(self, pieces: int, ctx: Lowering) -> int:
        """How many of the pieces of A a work-group makes."""
        return ceil_div(pieces, ctx.caps.compute_units)

    def split(self, pieces: int, ctx: Lowering) -> SplitK | None:
        """A part for each core, since all are written and read again; None where it does not pay.

        Args:
            pieces: Into which the kernel that makes A can divide its columns.
        """
        kernel, product, units = self.kernel, self.kernel.product, ctx.caps.compute_units
        few = kernel.blocks <= min(
            kernel.shares.split * units, kernel.longest
        )  # a work-group has all of them
        if product.batches > 1 or not few or pieces < units:
            return None
        span = self.span(pieces, ctx)
        parts, wide = ceil_div(pieces, span), kernel.panels * panel_width(kernel.tunables)
        sums = BufferArg(ctx.scratch(parts * product.m * wide))
        view = MatrixOperand(sums, (0, 0, wide, 1))
        adding = replace(kernel.with_a(view, parts), b=unread_arg(sums.buffer))
        args = {"parts": sums, "next_b": kernel.b, "next_n": product.n, "span": span}
        return SplitK(parts, args, adding.by_rows(ctx.caps, self.norm))


@dataclass(frozen=True)
class InlineProjection:
    """A product of which each work-group of the kernel that reads it can make its own columns.

    That kernel goes on with a product of what it makes: three nodes are one launch.
    """

    kernel: GemmKernel

    @classmethod
    def of(cls, product: GemmProblem, after: ChainedGemm, ctx: Lowering) -> InlineProjection:
        """The projection, whatever the shapes of a call.

        Raises:
            UnsupportedError: It cannot be made so.
        """
        kernel = GemmKernel.alone(product, ctx, {})
        after.check_tiles(product, ctx)
        return cls(kernel)

    def launches(self, ctx: Lowering) -> list[Launch]:
        """Those of the product where it has some of its own."""
        return [] if self.kernel.product.is_empty else [self.kernel.by_tiles(ctx)]

    @property
    def spec(self) -> KernelSpec:
        """The kernel of its own launch."""
        return self.kernel.spec

    @property
    def panel(self) -> int:
        """Columns that are made at once."""
        return panel_width(self.kernel.tunables)

    @property
    def flops(self) -> int:
        return self.kernel.product.flops

    @property
    def defines(self) -> dict[str, Define]:
        """The macros of PROJECT (fused_attention.cl)."""
        whole = dict(self.kernel.spec.defines)["S_N_WHOLE"]
        return {"PROJECT": 1, "S_N_WHOLE": whole, **self.kernel.product.epilogue.defines}

    @property
    def args(self) -> dict[str, Any]:
        """What PROJECT_INPUTS declares."""
        product = self.kernel.product
        tensors = {"projected": product.result, "x": product.a.buffer, "project_b": self.kernel.b}
        return {**tensors, "depth": product.k, **product.epilogue.args}

    @property
    def disabled_args(self) -> dict[str, Any]:
        """The same where the product has a launch of its own."""
        return {**placeholder_args(self.args, self.kernel.product.y), "depth": 0}


def emit_before(product: GemmProblem, after: ChainedGemm, ctx: Lowering) -> list[Launch]:
    """A product and the one that reads it: split over k where that pays, else one after the other.

    Raises:
        UnsupportedError: As `emit_cpu`.
    """
    if product.is_empty:
        return after.launches(ctx)
    kernel = GemmKernel.of(product, ctx, after.defines)
    product = kernel.product
    split = after.split(kernel.panels, ctx) if product.batches == 1 else None
    if split is None:
        return [*kernel.setup, kernel.by_tiles(ctx, **after.disabled_args), *after.launches(ctx)]
    flops = product.flops + after.flops
    launch = kernel.launch(kernel.blocks, split.parts, flops, **split.args)
    return [*kernel.setup, launch, split.add_up]

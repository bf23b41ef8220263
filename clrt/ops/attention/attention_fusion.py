"""Launch fusion of attention with its output projection and norm, and with the QKV projection."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from clrt.errors import UnsupportedError
from clrt.ir.graph import Node
from clrt.ir.pattern import Captures, op
from clrt.kernels.fusion import (
    FusionMatch,
    LaunchFusionRule,
    RegionLaunches,
    by_pattern,
)
from clrt.kernels.gemm_chain_cpu import ChainedGemm, InlineProjection, SplitK
from clrt.kernels.spec import Launch
from clrt.kernels.variant import Lowering, runs_as
from clrt.ops.attention.fused_attention import CPU, FusedAttention, launch_cpu, query_blocks
from clrt.ops.matmul.gemm_norm_fusion import (
    gemm_cpu_product,
    normalised_product,
    split_product,
)
from clrt.ops.matmul.matmul import MatrixProduct
from clrt.ops.norm.layer_normalization import Normalization
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class _AttentionChain:
    """A region: a FusedAttention node, its output projection, and the projection's normalization.

    Attributes:
        node: FusedAttention node.
        op: Op of `node`.
        product: GEMM of the output projection, with the normalization of its rows.
        projection: GEMM that produces q, k and v; None if it is not part of the region.
    """

    node: Node
    op: FusedAttention
    product: ChainedGemm
    projection: InlineProjection | None = None

    @property
    def flops(self) -> int:
        """Floating-point operations of the attention alone."""
        return self.op.flops(self.node.input_types, [self.node.output.type])

    def launches(self, ctx: Lowering) -> list[Launch]:
        """Emits the launches of attention, output projection and normalization.

        The launches of the GEMM that produces q, k and v are not included.
        """
        product, before = self.product, self.projection
        if 0 in self.node.output.dims:
            return product.launches(ctx)
        defines = product.defines | (before.defines if before else {})
        more = before.disabled_args if before else {}
        split = product.split(self.op.num_heads, self.flops, ctx)
        if split is None:
            heads = launch_cpu(self.node, ctx, defines, **product.disabled_args, **more)
            return [heads, *product.launches(ctx)]
        heads = launch_cpu(self.node, ctx, defines, **split.args, **more)
        return [_with_parts(heads, split, product.flops), split.add_up]

    def projected(self, before: InlineProjection, ctx: Lowering) -> list[Launch] | None:
        """Emits launches that compute q, k and v, attention, output projection and normalization.

        Returns None if one region of all these steps would be slower: for several sequences or
        query blocks, or if the output projection is not split along K, its summed axis.

        Args:
            before: GEMM that produces q, k and v.
        """
        # Each further query block or sequence would recompute the same keys or reread the weights.
        if prod(query_blocks(self.node, ctx.tunables(CPU))) != 1:
            return None
        product, flops = self.product, self.flops + before.flops
        split = product.split(self.op.num_heads, flops, ctx)
        if split is None:
            return None
        defines = product.defines | before.defines
        heads = launch_cpu(self.node, ctx, defines, **split.args, **before.args)
        return [_with_parts(heads, split, product.flops + before.flops), split.add_up]


def _with_parts(launch: Launch, split: SplitK, flops: int) -> Launch:
    """Returns an attention launch that also computes the output projection, split along K.

    Args:
        launch: Launch of the CPU attention kernel.
        split: Split along K, the summed axis; each work-group multiplies the heads it computed.
        flops: Floating-point operations of the projection.
    """
    blocks, _, batch = launch.global_size
    return replace(launch, global_size=(blocks, split.parts, batch), flops=launch.flops + flops)


def _lower(found: Captures, ctx: Lowering) -> _AttentionChain:
    """Returns the region of an attention, its output projection, and that projection's norm.

    Args:
        found: Captured nodes `attention`, `product` (the output projection) and `norm`.

    Raises:
        UnsupportedError: The three nodes cannot share launches.
    """
    node, projection = found.node("attention"), found.node("product")
    op = node.op_as(FusedAttention)
    runs_as("cpu", op.variants, node, ctx.caps)
    product = split_product(projection, found.node("norm"), ctx)
    lanes = ctx.tunables(CPU)["T_VW"]
    if product.lanes != lanes:
        raise UnsupportedError(f"{projection} has vectors of {product.lanes}, {node} of {lanes}")
    return _AttentionChain(node, op, product)


def _emit(match: FusionMatch, ctx: Lowering) -> RegionLaunches:
    return RegionLaunches(match.payload.launches(ctx))


def _lower_projected(found: Captures, ctx: Lowering) -> _AttentionChain:
    chain, before = _lower(found, ctx), gemm_cpu_product(found.node("projection"), ctx.caps)
    projection = InlineProjection.of(before, chain.product, ctx)
    _check_columns(chain, projection, ctx)
    return replace(chain, projection=projection)


def _emit_projected(match: FusionMatch, ctx: Lowering) -> RegionLaunches:
    chain, before = match.payload, match.payload.projection
    launches = chain.projected(before, ctx)
    if launches is not None:
        return RegionLaunches(launches, precompiled_kernels=(before.spec,))
    return RegionLaunches([*before.launches(ctx), *chain.launches(ctx)])


def _check_columns(chain: _AttentionChain, projection: InlineProjection, ctx: Lowering) -> None:
    """Checks that an attention can compute its QKV projection in its own work-groups.

    q, k and v must be columns of the projection's result, and together all of its columns, without
    gaps. The heads of a work-group must cover whole panels of columns.

    Args:
        chain: Attention and its output projection.
        projection: GEMM that produces q, k and v.

    Raises:
        UnsupportedError: One of these conditions is violated.
    """
    node, op, q = chain.node, chain.op, chain.node.arg(0)
    if q.type.rank != 3 or any(node.arg(i) is not q for i in (1, 2)):
        raise UnsupportedError(f"q, k and v of {node} are not columns of one tensor")
    span, group = chain.product.span(op.num_heads, ctx), op.num_heads // op.kv_num_heads
    sizes = (
        (op.q_offset, op.num_heads, op.head_size, span),
        (op.k_offset, op.kv_num_heads, op.head_size, span // group),
        (op.v_offset, op.kv_num_heads, op.v_head_size, span // group),
    )
    ends = sorted((start, start + count * size) for start, count, size, _ in sizes)
    if [0, *(end for _, end in ends)] != [*(start for start, _ in ends), q.dims[-1]]:
        raise UnsupportedError(f"q, k and v of {node} do not lie side by side")
    columns = (n for start, count, size, some in sizes for n in (start, count * size, some * size))
    if span % group or any(n % projection.panel for n in columns):
        raise UnsupportedError(f"the heads of {node} do not fill panels of {projection.panel}")


_CHAIN = normalised_product(op(FusedAttention, ..., name="attention"))
_PROJECTION = op(MatrixProduct, ..., name="projection")
_PROJECTED_CHAIN = normalised_product(op(FusedAttention, _PROJECTION, ..., name="attention"))
LAUNCH_FUSIONS = (
    LaunchFusionRule(
        "attention_product_norm", 3, (Normalization,), by_pattern(_CHAIN, _lower), _emit
    ),
    LaunchFusionRule(
        "projection_attention_product_norm",
        4,
        (Normalization,),
        by_pattern(_PROJECTED_CHAIN, _lower_projected),
        _emit_projected,
    ),
)

"""Attention that shares launches with the product behind it, and with the projection before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from clrt.errors import UnsupportedError
from clrt.ir.graph import Node
from clrt.kernels.fusion import (
    FusionMatch,
    LaunchFusionRule,
    ProducerMap,
    RegionLaunches,
    register_fusion,
)
from clrt.kernels.gemm_chain_cpu import ChainedGemm, InlineProjection, SplitK
from clrt.kernels.spec import Launch
from clrt.kernels.variant import Lowering, runs_as
from clrt.ops.attention.fused_attention import CPU, FusedAttention, launch_cpu, query_blocks
from clrt.ops.matmul.gemm_norm_fusion import (
    gemm_cpu_product,
    normalised_product,
    product_making,
    split_product,
)


@dataclass(frozen=True)
class _AttentionChain:
    """A FusedAttention, the product that reads it, and perhaps the one that it reads."""

    node: Node
    op: FusedAttention
    product: ChainedGemm
    projection: InlineProjection | None = None

    def launches(self, ctx: Lowering) -> list[Launch]:
        """Those without the projection."""
        product, before = self.product, self.projection
        if 0 in self.node.output.dims:
            return product.launches(ctx)
        defines = product.defines | (before.defines if before else {})
        more = before.disabled_args if before else {}
        split = product.split(self.op.num_heads, ctx)
        if split is None:
            heads = launch_cpu(self.node, ctx, defines, **product.disabled_args, **more)
            return [heads, *product.launches(ctx)]
        heads = launch_cpu(self.node, ctx, defines, **split.args, **more)
        return [_with_parts(heads, split, product.flops), split.add_up]

    def projected(self, before: InlineProjection, ctx: Lowering) -> list[Launch] | None:
        """Those that make the projection, too; None where that does not pay."""
        # Further blocks of queries, or sequences, would each make the same keys or weights again.
        if prod(query_blocks(self.node, ctx.tunables(CPU))) != 1:
            return None
        product, split = self.product, self.product.split(self.op.num_heads, ctx)
        if split is None:
            return None
        defines = product.defines | before.defines
        heads = launch_cpu(self.node, ctx, defines, **split.args, **before.args)
        return [_with_parts(heads, split, product.flops + before.flops), split.add_up]


def _with_parts(launch: Launch, split: SplitK, flops: int) -> Launch:
    """The launch with a part of the product after it in each work-group."""
    blocks, _, batch = launch.global_size
    return replace(launch, global_size=(blocks, split.parts, batch), flops=launch.flops + flops)


def _attention_before(norm: Node, makers: ProducerMap) -> tuple[Node, Node] | None:
    """The FusedAttention and the product that reads it, whose rows a node normalises."""
    made = normalised_product(norm, makers)
    heads = None if made is None else makers.get(made.arg(0))
    if made is None or heads is None or not isinstance(heads.op, FusedAttention):
        return None
    return heads, made


def _heads(node: Node, made: Node, norm: Node, ctx: Lowering) -> _AttentionChain:
    """Raises UnsupportedError where the three do not share launches."""
    op = node.op
    assert isinstance(op, FusedAttention)
    runs_as("cpu", op.variants, node, ctx.caps)
    product, lanes = split_product(made, norm, ctx), ctx.tunables(CPU)["T_VW"]
    if product.lanes != lanes:
        raise UnsupportedError(f"{made} has vectors of {product.lanes}, {node} of {lanes}")
    return _AttentionChain(node, op, product)


def _match(norm: Node, makers: ProducerMap, ctx: Lowering) -> FusionMatch | None:
    found = _attention_before(norm, makers)
    return None if found is None else FusionMatch((*found, norm), _heads(*found, norm, ctx))


def _emit(match: FusionMatch, ctx: Lowering) -> RegionLaunches:
    return RegionLaunches(match.payload.launches(ctx))


def _match_projected(norm: Node, makers: ProducerMap, ctx: Lowering) -> FusionMatch | None:
    found = _attention_before(norm, makers)
    before = None if found is None else product_making(found[0].arg(0), makers)
    if found is None or before is None:
        return None
    heads = _heads(*found, norm, ctx)
    projection = InlineProjection.of(gemm_cpu_product(before, ctx.caps), heads.product, ctx)
    _check_columns(heads, projection, ctx)
    return FusionMatch((before, *found, norm), replace(heads, projection=projection))


def _emit_projected(match: FusionMatch, ctx: Lowering) -> RegionLaunches:
    heads, before = match.payload, match.payload.projection
    launches = heads.projected(before, ctx)
    if launches is not None:
        return RegionLaunches(launches, also=(before.spec,))
    return RegionLaunches([*before.launches(ctx), *heads.launches(ctx)])


def _check_columns(heads: _AttentionChain, projection: InlineProjection, ctx: Lowering) -> None:
    """Checks that q, k and v are the columns of the projection, and that a work-group's heads take
    whole panels of it.

    Raises:
        UnsupportedError: They are not, or do not.
    """
    node, op, q = heads.node, heads.op, heads.node.arg(0)
    if q.type.rank != 3 or any(node.arg(i) is not q for i in (1, 2)):
        raise UnsupportedError(f"q, k and v of {node} are not columns of one tensor")
    span, group = heads.product.span(op.num_heads, ctx), op.num_heads // op.kv_num_heads
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


register_fusion(LaunchFusionRule("attention_product_norm", 3, _match, _emit))
register_fusion(
    LaunchFusionRule("projection_attention_product_norm", 4, _match_projected, _emit_projected)
)

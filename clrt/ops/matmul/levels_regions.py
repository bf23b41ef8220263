"""Products by 8-bit dots that share a launch: with the norm of their rows, and with each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from clrt.errors import UnsupportedError
from clrt.ir.graph import Node
from clrt.kernels.fusion import (
    FusionMatch,
    FusionMiss,
    LaunchFusion,
    Makers,
    RegionLaunches,
    register_fusion,
)
from clrt.kernels.gemm import NormedRows, emit_levels_cpu
from clrt.kernels.levels import DotWeights
from clrt.kernels.product import Product
from clrt.kernels.spec import BufferArg
from clrt.kernels.variant import Lowering, runs_as
from clrt.ops.matmul.quantized_matmul import QuantizedMatMul, levels_product
from clrt.ops.norm.layer_normalization import row_norm
from clrt.ops.norm.rms_normalization import RMSNormalization


@dataclass(frozen=True)
class _SharedLaunch:
    product: Product
    norm: NormedRows | None
    second: DotWeights | None


def _by_dots(node: Node, ctx: Lowering) -> Product:
    """A node as a product by dots.

    Raises:
        UnsupportedError: It is none.
    """
    if not isinstance(node.op, QuantizedMatMul):
        raise UnsupportedError(f"{node} is no QuantizedMatMul")
    runs_as("gemm_levels_cpu", node.op.variants, node, ctx.caps)
    return levels_product(node)


def _second(node: Node, makers: Makers) -> Node | None:
    """The product of the same rows that an epilogue reads, if one does."""
    if not isinstance(node.op, QuantizedMatMul):
        return None
    for extra in node.op.extras(node):
        made = makers.get(extra)
        twin = made is not None and isinstance(made.op, QuantizedMatMul)
        if made is not None and twin and made.arg(0) is node.arg(0) and made is not node:
            return made
    return None


def _norm(nodes: tuple[Node, ...], makers: Makers, ctx: Lowering) -> Node | None:
    """The norm of the rows that products read, if nothing else reads it."""
    rows = nodes[0].arg(0)
    made = makers.get(rows)
    if made is None or not isinstance(made.op, RMSNormalization):
        return None
    row_norm(made, ctx.caps)
    if not makers.reads_alone(nodes, rows):
        raise UnsupportedError(f"other nodes read {made}, too")
    return made


def _match_normed(node: Node, makers: Makers, ctx: Lowering) -> FusionMatch | FusionMiss | None:
    if not isinstance(node.op, QuantizedMatMul):
        return None
    product, norm = _by_dots(node, ctx), _norm((node,), makers, ctx)
    if norm is None:
        return None
    return FusionMatch((norm, node), _SharedLaunch(_of_rows(product, norm), _normed(norm), None))


def _match_gated(node: Node, makers: Makers, ctx: Lowering) -> FusionMatch | FusionMiss | None:
    found = _gated(node, makers, ctx)
    return None if found is None else FusionMatch((found[0], node), found[1])


def _match_normed_gated(
    node: Node, makers: Makers, ctx: Lowering
) -> FusionMatch | FusionMiss | None:
    found = _gated(node, makers, ctx)
    norm = None if found is None else _norm((found[0], node), makers, ctx)
    if found is None or norm is None:
        return None
    second, shared = found
    facts = replace(shared, product=_of_rows(shared.product, norm), norm=_normed(norm))
    return FusionMatch((norm, second, node), facts)


def _gated(node: Node, makers: Makers, ctx: Lowering) -> tuple[Node, _SharedLaunch] | None:
    """A product beside the second one that its epilogue reads.

    Raises:
        UnsupportedError: They are not of one form, or others read the second one.
    """
    second = _second(node, makers)
    if second is None:
        return None
    product, other = _by_dots(node, ctx), _by_dots(second, ctx)
    assert product.levels is not None and other.levels is not None
    if other.epilogue.operands or other.epilogue.body:
        raise UnsupportedError(f"{second} has an epilogue")
    if product.levels.defines != other.levels.defines or product.n != other.n:
        raise UnsupportedError(f"weights of {node} and {second} are not of one form")
    if not makers.reads_alone((node,), second.output) or node.inputs.count(second.output) > 1:
        raise UnsupportedError(f"{second} is read more than once")
    operands = tuple(
        replace(o, in_tile=o.value is second.output) for o in product.epilogue.operands
    )
    epilogue = replace(product.epilogue, operands=operands)
    return second, _SharedLaunch(replace(product, epilogue=epilogue), None, other.levels)


def _of_rows(product: Product, norm: Node) -> Product:
    """A product of what a norm reads."""
    return replace(product, a=replace(product.a, buffer=BufferArg(norm.arg(0))))


def _normed(norm: Node) -> NormedRows:
    assert isinstance(norm.op, RMSNormalization)
    return NormedRows(norm.arg(1), norm.op.epsilon)


def _emit(match: FusionMatch, ctx: Lowering) -> RegionLaunches:
    shared = match.facts
    assert isinstance(shared, _SharedLaunch)
    return RegionLaunches(emit_levels_cpu(shared.product, ctx, shared.norm, shared.second))


register_fusion(LaunchFusion("normed_levels", 2, _match_normed, _emit))
register_fusion(LaunchFusion("gated_levels", 2, _match_gated, _emit))
register_fusion(LaunchFusion("normed_gated_levels", 3, _match_normed_gated, _emit))

"""Launch fusion of a matrix product with the normalization of its rows, and a preceding product."""

from __future__ import annotations

from clrt.device.caps import DeviceCaps
from clrt.errors import UnsupportedError
from clrt.ir.graph import Node, Value
from clrt.kernels.fusion import (
    FusionMatch,
    LaunchFusionRule,
    ProducerMap,
    RegionLaunches,
    register_fusion,
)
from clrt.kernels.gemm_chain_cpu import ChainedGemm, emit_before
from clrt.kernels.gemm_cpu import emit_cpu
from clrt.kernels.gemm_problem import GemmProblem
from clrt.kernels.row_norm import RowNorm
from clrt.kernels.variant import Lowering, runs_as
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.matmul import MatrixProduct, lower_product
from clrt.ops.norm.layer_normalization import Normalization, row_norm


def product_making(value: Value, makers: ProducerMap) -> Node | None:
    """Returns the matrix product node that produces `value`; None if no such node does."""
    node = makers.get(value)
    return node if node is not None and isinstance(node.op, MatrixProduct) else None


def takes_norm(node: Node | None) -> bool:
    """Returns whether a node is a product whose kernel can normalize the rows of A itself.

    Those products are FusedMatMul nodes of matrices with a constant B (`norm_gemm_fusion`).
    """
    if node is None or not isinstance(node.op, FusedMatMul) or node.op.trans_a:
        return False
    a, b = node.arg(0), node.arg(1)
    return b.is_constant and a is not b and len(a.dims) == len(b.dims) == 2


def normalised_product(norm: Node, makers: ProducerMap) -> Node | None:
    """Returns the matrix product node whose rows the node `norm` normalizes; None to not fuse them.

    Returns None if `norm` is no Normalization, if no matrix product computes its input, or if all
    readers of an RMS normalization can normalize the rows themselves (`takes_norm`), which saves
    its launch if there are few rows.
    """
    if not isinstance(norm.op, Normalization):
        return None
    if norm.op.rms and all(map(takes_norm, makers.readers[norm.output])):
        return None
    return product_making(norm.arg(0), makers)


def gemm_cpu_product(node: Node, caps: DeviceCaps) -> GemmProblem:
    """Lowers a matrix product node to a GEMM of the kernel gemm_cpu.

    Raises:
        UnsupportedError: The node runs by another kernel, or no kernel supports its epilogue.
    """
    assert isinstance(node.op, MatrixProduct)
    runs_as("gemm_cpu", node.op.variants, node, caps)
    return lower_product(node)


def split_product(node: Node, norm: Node, ctx: Lowering) -> ChainedGemm:
    """Returns a product and the normalization of its rows as a GEMM split along K.

    The work-groups of the launch that computes the product's A (attention or another product)
    each multiply the columns of A that they have computed.

    Args:
        node: Matrix product node.
        norm: Node that normalizes the rows of the product.

    Raises:
        UnsupportedError: The product cannot be split, because A is transposed, the product has no
            rows, or one of the nodes does not run by the CPU kernel that is needed.
    """
    assert isinstance(node.op, MatrixProduct)
    if node.op.transposed()[0]:
        raise UnsupportedError(f"{node} transposes what it reads")
    product, rows = _with_rows(node, norm, ctx.caps)
    return ChainedGemm.of(product, rows, ctx)


def _with_rows(node: Node, norm: Node, caps: DeviceCaps) -> tuple[GemmProblem, RowNorm]:
    rows, product = row_norm(norm, caps), gemm_cpu_product(node, caps)
    if len(node.arg(1).dims) == 1:
        raise UnsupportedError(f"{node} has no rows")
    return product, rows


def _match_one(node: Node, makers: ProducerMap, ctx: Lowering) -> FusionMatch | None:
    product = normalised_product(node, makers)
    if product is None:
        return None
    return FusionMatch((product, node), _with_rows(product, node, ctx.caps))


def _emit_one(match: FusionMatch, ctx: Lowering) -> RegionLaunches:
    product, rows = match.payload
    return RegionLaunches(emit_cpu(product, ctx, rows))


def _match_two(node: Node, makers: ProducerMap, ctx: Lowering) -> FusionMatch | None:
    second = normalised_product(node, makers)
    first = None if second is None else product_making(second.arg(0), makers)
    if first is None or second is None:
        return None
    split, product = split_product(second, node, ctx), gemm_cpu_product(first, ctx.caps)
    split.check_tiles(product, ctx)
    return FusionMatch((first, second, node), (product, split))


def _emit_two(match: FusionMatch, ctx: Lowering) -> RegionLaunches:
    product, split = match.payload
    return RegionLaunches(emit_before(product, split, ctx))


register_fusion(LaunchFusionRule("product_norm", 2, _match_one, _emit_one))
register_fusion(LaunchFusionRule("product_product_norm", 3, _match_two, _emit_two))

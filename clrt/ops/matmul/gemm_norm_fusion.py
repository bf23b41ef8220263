"""Launch fusion of a matrix product with the normalization of its rows, and a preceding product."""

from __future__ import annotations

from clrt.device.caps import DeviceCaps
from clrt.errors import UnsupportedError
from clrt.ir.graph import Node
from clrt.ir.pattern import Captures, Pattern, op
from clrt.kernels.fusion import (
    FusionMatch,
    LaunchFusionRule,
    ProducerMap,
    RegionLaunches,
    by_pattern,
)
from clrt.kernels.gemm_chain_cpu import ChainedGemm, emit_before
from clrt.kernels.gemm_cpu import emit_cpu
from clrt.kernels.gemm_problem import GemmProblem
from clrt.kernels.row_norm import RowNorm
from clrt.kernels.variant import Lowering, runs_as
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.matmul import MatrixProduct, lower_product
from clrt.ops.norm.layer_normalization import Normalization, row_norm


def takes_norm(node: Node | None) -> bool:
    """Returns whether a node is a product whose kernel can normalize the rows of A itself.

    Only a FusedMatMul of two matrices can (`norm_gemm_fusion`), if A is not transposed and B is a
    constant. Returns False for None.
    """
    if node is None or not isinstance(node.op, FusedMatMul) or node.op.trans_a:
        return False
    a, b = node.arg(0), node.arg(1)
    return b.is_constant and a is not b and len(a.dims) == len(b.dims) == 2


def _keeps_norm(found: Captures) -> bool:
    """Returns whether to compute the normalization `norm` with the product before it.

    Returns False for an RMS normalization if all nodes that read its result can normalize the rows
    themselves (`takes_norm`): with few rows that saves the launch of the normalization.

    Args:
        found: Captured nodes, with `norm`.
    """
    norm, makers = found.node("norm"), found.edges
    assert isinstance(makers, ProducerMap)
    return not (norm.op_as(Normalization).rms and all(map(takes_norm, makers.readers[norm.output])))


def normalised_product(*a: Pattern) -> Pattern:
    """Returns the pattern of a normalization `norm` of the rows of a matrix product `product`.

    Args:
        a: Pattern of A of the product, at most one; any A if omitted.
    """
    product = op(MatrixProduct, *a, ..., name="product")
    return op(Normalization, product, ..., name="norm").where(_keeps_norm)


def gemm_cpu_product(node: Node, caps: DeviceCaps) -> GemmProblem:
    """Lowers a matrix product node to a GEMM of the kernel gemm_cpu.

    Raises:
        UnsupportedError: The node runs by another kernel, or no kernel supports its epilogue.
    """
    runs_as("gemm_cpu", node.op_as(MatrixProduct).variants, node, caps)
    return lower_product(node)


def split_product(node: Node, norm: Node, ctx: Lowering) -> ChainedGemm:
    """Returns a product and the normalization of its rows as a GEMM split along K, the summed axis.

    A preceding launch, of attention or another product, computes A of the product. Each work-group
    of that launch also multiplies its own columns of A by the matching rows of B.

    Args:
        node: Matrix product node.
        norm: Node that normalizes the rows of the product.

    Raises:
        UnsupportedError: A is transposed, B is a vector, the normalization cannot be fused
            (`row_norm`), or a node does not run by its CPU kernel.
    """
    if node.op_as(MatrixProduct).transposed()[0]:
        raise UnsupportedError(f"{node} transposes what it reads")
    product, rows = _with_rows(node, norm, ctx.caps)
    return ChainedGemm.of(product, rows, ctx)


def _with_rows(node: Node, norm: Node, caps: DeviceCaps) -> tuple[GemmProblem, RowNorm]:
    rows, product = row_norm(norm, caps), gemm_cpu_product(node, caps)
    if len(node.arg(1).dims) == 1:
        raise UnsupportedError(f"{node} has no rows")
    return product, rows


def _lower_one(found: Captures, ctx: Lowering) -> tuple[GemmProblem, RowNorm]:
    return _with_rows(found.node("product"), found.node("norm"), ctx.caps)


def _emit_one(match: FusionMatch, ctx: Lowering) -> RegionLaunches:
    product, rows = match.payload
    return RegionLaunches(emit_cpu(product, ctx, rows))


def _lower_two(found: Captures, ctx: Lowering) -> tuple[GemmProblem, ChainedGemm]:
    split = split_product(found.node("product"), found.node("norm"), ctx)
    first = gemm_cpu_product(found.node("first"), ctx.caps)
    split.check_tiles(first, ctx)
    return first, split


def _emit_two(match: FusionMatch, ctx: Lowering) -> RegionLaunches:
    product, split = match.payload
    return RegionLaunches(emit_before(product, split, ctx))


NORMALISED_PRODUCT = normalised_product()
_TWO = normalised_product(op(MatrixProduct, ..., name="first"))
LAUNCH_FUSIONS = (
    LaunchFusionRule(
        "product_norm",
        2,
        (Normalization,),
        by_pattern(NORMALISED_PRODUCT, _lower_one),
        _emit_one,
    ),
    LaunchFusionRule(
        "product_product_norm", 3, (Normalization,), by_pattern(_TWO, _lower_two), _emit_two
    ),
)

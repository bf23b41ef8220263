"""Launch fusion of matrix products with the RMSNormalization of A, and of pairs of products.

The fusion serves the projections of a decoder after an RMSNormalization: the QKV product, and the
gate and up products of an MLP, where the epilogue of one product reads the result of the other. For
few rows, each work-group normalizes the rows of A itself.
"""

from __future__ import annotations

from dataclasses import replace

from clrt.errors import UnsupportedError
from clrt.ir.graph import Node
from clrt.ir.pattern import Captures
from clrt.kernels.fusion import (
    FusionMatch,
    FusionMiss,
    LaunchFusionRule,
    ProducerMap,
    RegionLaunches,
)
from clrt.kernels.gemm_cpu import emit_cpu
from clrt.kernels.gemm_problem import GemmProblem
from clrt.kernels.gemm_small_m_cpu import (
    MOST_ROWS,
    RmsNormPrologue,
    SmallMThresholds,
    emit_few_rows,
    of_rows,
)
from clrt.kernels.gemm_variants import emit_levels_cpu
from clrt.kernels.spec import Launch
from clrt.kernels.variant import Lowering, runs_as
from clrt.ops.base import Op
from clrt.ops.matmul.gemm_norm_fusion import NORMALISED_PRODUCT, gemm_cpu_product, takes_norm
from clrt.ops.matmul.matmul import MatrixProduct
from clrt.ops.matmul.quantized_product import QuantizedProduct, panels_product
from clrt.ops.norm.layer_normalization import row_norm
from clrt.ops.norm.rms_normalization import RMSNormalization
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class _SharedLaunch:
    """A matrix product that shares a launch with the normalization of A, another product, or both.

    Attributes:
        product: GEMM of the product; its A is the output of `norm`, if any.
        norm: RMSNormalization node that produces A; None if it is not part of the launch.
        second: Node and GEMM of another product of the same A, which the epilogue of `product`
            reads; None if there is none in the launch.
    """

    product: GemmProblem
    norm: Node | None = None
    second: tuple[Node, GemmProblem] | None = None


def _product(node: Node, ctx: Lowering) -> GemmProblem | None:
    """Returns the GEMM of a node for the kernel gemm_levels_cpu or gemm_cpu, memoized in `ctx`.

    Returns None unless the node is a product with quantized weights, or one whose kernel can
    normalize the rows of A (`takes_norm`).

    Raises:
        UnsupportedError: The matrix product runs by another kernel.
    """
    if not isinstance(node.op, MatrixProduct):
        return None
    if node not in ctx.memo:
        try:
            ctx.memo[node] = _lower_fusible(node, ctx)
        except UnsupportedError as error:
            ctx.memo[node] = error
    product = ctx.memo[node]
    if isinstance(product, UnsupportedError):
        raise product
    assert product is None or isinstance(product, GemmProblem)
    return product


def _lower_fusible(node: Node, ctx: Lowering) -> GemmProblem | None:
    if isinstance(node.op, QuantizedProduct):
        runs_as("gemm_levels_cpu", node.op.variants, node, ctx.caps)
        return panels_product(node)
    return gemm_cpu_product(node, ctx.caps) if takes_norm(node) else None


def _second(node: Node, makers: ProducerMap) -> Node | None:
    """Returns the product of the same A as `node` that the epilogue of `node` reads; None if none.

    Args:
        node: Node whose epilogue is searched.
        makers: Producer of each value.
    """
    if not isinstance(node.op, MatrixProduct):
        return None
    for extra in node.op.extras(node):
        other = makers.get(extra)
        if other is not None and type(other.op) is type(node.op) and other.arg(0) is node.arg(0):
            return other
    return None


def norm_of(nodes: tuple[Node, ...], makers: ProducerMap, ctx: Lowering) -> Node | None:
    """Returns the RMSNormalization node that produces the common A of product nodes.

    Returns None if no RMSNormalization produces A.

    Args:
        nodes: Matrix product nodes that share one A.
        makers: Producer of each value.

    Raises:
        UnsupportedError: Other nodes read the normalized rows, too, or the normalization cannot be
            fused (`row_norm`).
    """
    rows = nodes[0].arg(0)
    norm = makers.get(rows)
    if norm is None or not isinstance(norm.op, RMSNormalization):
        return None
    row_norm(norm, ctx.caps)
    if not makers.is_only_read_by(nodes, rows):
        raise UnsupportedError(f"other nodes read {norm}, too")
    return norm


def _match_normed(
    node: Node, makers: ProducerMap, ctx: Lowering
) -> FusionMatch | FusionMiss | None:
    product = _product(node, ctx)
    norm = None if product is None else norm_of((node,), makers, ctx)
    if product is None or norm is None:
        return None
    return FusionMatch((norm, node), _SharedLaunch(product, norm))


def _match_narrow(
    node: Node, makers: ProducerMap, ctx: Lowering
) -> FusionMatch | FusionMiss | None:
    """Matches a product with large 16-bit weights, to compute it by the kernel for few rows.

    With few rows, the time to read the weights decides. The kernel for few rows keeps up with
    reading 16-bit weights, which takes half as long as float32; the kernel for many rows does not.
    Returns None for nodes without 16-bit weights, and a miss if the weights are small or another
    rule may match.
    """
    product = _product(node, ctx)
    if product is None or product.weights is not None or product.right is product.dtype:
        return None
    for reader in makers.readers[node.output]:
        is_product = reader is not None and isinstance(reader.op, MatrixProduct)
        if is_product or (reader is not None and _normalises(reader, node, makers)):
            return FusionMiss(f"it may share a launch with {reader}")
    kib = node.arg(1).nbytes / 1024
    if kib < ctx.thresholds(SmallMThresholds).narrow_kib:
        return FusionMiss(f"its weights take {kib:.0f} KiB only")
    return FusionMatch((node,), _SharedLaunch(product))


def _normalises(reader: Node, product: Node, makers: ProducerMap) -> bool:
    """Returns whether `reader` normalizes the rows of `product` and a rule may fuse the two.

    Args:
        reader: Node that reads the result of `product`.
        product: Matrix product node.
        makers: Producer of each value.
    """
    found = NORMALISED_PRODUCT.find(reader.output, makers)
    return isinstance(found, Captures) and found.node("product") is product


def _match_gated(node: Node, makers: ProducerMap, ctx: Lowering) -> FusionMatch | FusionMiss | None:
    shared = _gated(node, makers, ctx)
    if shared is None or shared.second is None:
        return None
    return FusionMatch((shared.second[0], node), shared)


def _match_both(node: Node, makers: ProducerMap, ctx: Lowering) -> FusionMatch | FusionMiss | None:
    shared = _gated(node, makers, ctx)
    if shared is None or shared.second is None:
        return None
    second = shared.second[0]
    norm = norm_of((second, node), makers, ctx)
    return None if norm is None else FusionMatch((norm, second, node), replace(shared, norm=norm))


def _gated(node: Node, makers: ProducerMap, ctx: Lowering) -> _SharedLaunch | None:
    """Returns the launch of `node` and of a second product of the same A, as in a gated MLP.

    Returns None if the epilogue of `node` reads no second product, or if one of the two products is
    of a kind that this fusion does not handle (`_product` returns None).

    Args:
        node: Node of the first product, whose epilogue reads the second one.
        makers: Producer of each value.

    Raises:
        UnsupportedError: The weights of the two products differ in size or layout, the second
            product has an epilogue or other readers, or one of the products runs by another kernel.
    """
    product = _product(node, ctx)
    second = None if product is None else _second(node, makers)
    other = None if second is None else _product(second, ctx)
    if product is None or second is None or other is None:
        return None
    if other.epilogue.operands or other.epilogue.body:
        raise UnsupportedError(f"{second} has an epilogue")
    if (product.n, product.b_defines) != (other.n, other.b_defines):
        raise UnsupportedError(f"weights of {node} and {second} are not of one form")
    if not makers.is_only_read_by((node,), second.output) or node.inputs.count(second.output) > 1:
        raise UnsupportedError(f"{second} is read more than once")
    return _SharedLaunch(product, second=(second, other))


def _in_tile(shared: _SharedLaunch) -> GemmProblem:
    """Returns `shared.product` as the GEMM of one launch with the norm and the second product.

    The GEMM's epilogue reads the second product from registers. The GEMM's A is the input of the
    norm, whose rows the launch normalizes.
    """
    product = shared.product
    if shared.second is not None:
        value = shared.second[0].output
        operands = tuple(replace(o, in_tile=o.value is value) for o in product.epilogue.operands)
        product = replace(product, epilogue=replace(product.epilogue, operands=operands))
    return product if shared.norm is None else of_rows(product, shared.norm.arg(0))


def _emit(match: FusionMatch, ctx: Lowering) -> RegionLaunches:
    shared = match.payload
    assert isinstance(shared, _SharedLaunch)
    norm, second = shared.norm, None if shared.second is None else shared.second[1]
    normed = None
    if norm is not None:
        normed = RmsNormPrologue(norm.arg(1), norm.op_as(RMSNormalization).epsilon)
    fused = _in_tile(shared)
    if fused.weights is not None:
        more = None if second is None else second.weights
        return RegionLaunches(emit_levels_cpu(fused, ctx, normed, more))
    few, separate = emit_few_rows(fused, ctx, normed, second), _separate(shared, ctx)
    # The kernels of the other path are compiled too, so that a new number of rows needs no
    # compiler.
    launches, others = (few, separate) if shared.product.m <= MOST_ROWS else (separate, few)
    return RegionLaunches(launches, tuple(x.kernel for x in others))


def _separate(shared: _SharedLaunch, ctx: Lowering) -> list[Launch]:
    """Emits the norm, the second product and the product as separate launches.

    That is faster than one shared launch if there are many rows.
    """
    launches: list[Launch] = []
    if shared.norm is not None:
        norm = shared.norm.op_as(Op).variants[0]
        launches += norm.emit(shared.norm, ctx)
    if shared.second is not None:
        launches += emit_cpu(shared.second[1], ctx)
    return [*launches, *emit_cpu(shared.product, ctx)]


LAUNCH_FUSIONS = (
    LaunchFusionRule("narrow_product", 1, (MatrixProduct,), _match_narrow, _emit),
    LaunchFusionRule("normed_product", 2, (MatrixProduct,), _match_normed, _emit),
    LaunchFusionRule("gated_product", 2, (MatrixProduct,), _match_gated, _emit),
    LaunchFusionRule("normed_gated_product", 3, (MatrixProduct,), _match_both, _emit),
)

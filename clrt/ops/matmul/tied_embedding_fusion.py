"""Launch fusion of a Gather whose table is also the weight of a product (tied embeddings).

The Gather reads rows from the packed panels of the product, so that the device holds the table
once.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

from clrt.ir.graph import Node, Value
from clrt.kernels.fusion import (
    FusionMatch,
    LaunchFusionRule,
    ProducerMap,
    RegionLaunches,
)
from clrt.kernels.gemm_cpu import pack_b, packed_width
from clrt.kernels.gemm_problem import merge
from clrt.kernels.spec import KernelSpec, PackedWeight, launch
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.variant import Lowering
from clrt.ops.index_checks import index_status
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.gemm_norm_fusion import gemm_cpu_product
from clrt.ops.movement.common import index_t
from clrt.ops.movement.gather import Gather
from clrt.util.math import ceil_div


class GatherPanelsPartition(Thresholds):
    """Threshold of the partition of a Gather of packed rows into work-groups."""

    elems: int = tunable(256, "elements", "Copied by a work-group, to amortize its start.")

    group: ClassVar = "gather_panels_shares"


def _match(node: Node, makers: ProducerMap, ctx: Lowering) -> FusionMatch | None:
    """Matches a Gather of rows of a constant that is also the transposed B of a FusedMatMul.

    Returns None for other nodes, or if the product does not read B in packed panels. The payload of
    a match is the packed B and its panel width.

    Args:
        node: Node that may be such a Gather.
        makers: Producers and readers of values.

    Raises:
        UnsupportedError: The FusedMatMul runs by another kernel than gemm_cpu.
    """
    if not isinstance(node.op, Gather) or not node.arg(0).is_constant:
        return None
    table = node.arg(0)
    if node.op.axis not in (0, -len(table.dims)) or len(table.dims) != 2:
        return None
    reader = next((n for n in makers.readers[table] if n is not None and _reads(n, table)), None)
    if reader is None:
        return None
    product = gemm_cpu_product(reader, ctx.caps)
    _, merged = merge(product, ctx)
    _, panels, _ = pack_b(merged, packed_width(product, ctx), ctx)
    if not isinstance(panels.buffer, PackedWeight):
        return None
    return FusionMatch((node,), (panels.buffer, packed_width(product, ctx)))


def _reads(node: Node, table: Value) -> bool:
    """Returns whether a node is a FusedMatMul whose B is the transposed embedding `table`."""
    op = node.op
    return isinstance(op, FusedMatMul) and bool(op.trans_b) and node.arg(1) is table


def _emit(match: FusionMatch, ctx: Lowering) -> RegionLaunches:
    (node,), (panels, width) = match.nodes, match.payload
    table, indices = node.arg(0), node.arg(1)
    n, k = table.dims
    macros = {"DATA_T": table.dtype.cl_bits, "INDEX_T": index_t(indices)}
    elems = ctx.thresholds(GatherPanelsPartition).elems
    kernel = KernelSpec.of("matmul/gather_panels.cl", "gather_panels", ELEMS=elems, **macros)
    status = index_status(node, 1, (n,), f"axis 0 of '{table.name}'")
    tensors = {"y": node.output, "panels": panels, "indices": indices, "status": status}
    grid = (ceil_div(k, elems), prod(indices.dims))
    return RegionLaunches([launch(kernel, grid, (1, 1), N=n, K=k, width=width, **tensors)])


LAUNCH_FUSIONS = (LaunchFusionRule("shared_table", 1, (Gather,), _match, _emit),)

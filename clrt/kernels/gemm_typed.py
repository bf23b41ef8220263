"""CPU GEMM of float64 and of 32- and 64-bit integers by the kernel gemm_typed_cpu."""

from __future__ import annotations

from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.kernels.gemm_cpu import GemmPartitionThresholds, pack_b
from clrt.kernels.gemm_problem import GemmProblem, copy_a, merge
from clrt.kernels.gemm_tile import panel_width
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, reject_float64
from clrt.util.math import ceil_div

CPU = tuned(
    "gemm_typed_cpu",
    {"T_MR": (3, 4, 6, 8), "T_NV": (1, 2, 3, 4), "T_VW": (2, 4, 8), "T_MC": (8, 32, 128)},
    T_MR=4,
    T_NV=3,
    T_VW=4,
    T_MC=32,
    T_KU=2,
)
_TYPES = frozenset({DType.FLOAT64, DType.INT32, DType.UINT32, DType.INT64, DType.UINT64})


def reject_typed(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why `emit_typed_cpu` cannot run a node on a device; None if it can.

    `emit_typed_cpu` computes products of float64 and of 32- and 64-bit integers.
    """
    if node.arg(0).dtype not in _TYPES:
        return "for float64 and integers of 32 and 64 bits"
    return reject_float64(node, caps)


def emit_typed_cpu(product: GemmProblem, ctx: Lowering) -> list[Launch]:
    """Returns launches of a CPU GEMM of float64 or of 32- or 64-bit integers.

    B is packed in panels: a constant B at load, a computed B by a launch.

    Raises:
        UnsupportedError: The epilogue has more than two batch axes.
    """
    if product.is_empty:
        return []
    tunables = ctx.tunables(CPU)
    launches, product = merge(product, ctx)
    if product.k and product.a.strides[-1] != 1:
        copied, product = copy_a(product, ctx)
        launches += copied
    packing, b, (b_s0, b_s1) = pack_b(product, panel_width(tunables), ctx)
    panels = ceil_div(product.n, panel_width(tunables)) * product.batches
    blocks, shares = ceil_div(product.m, tunables["T_MR"]), ctx.thresholds(GemmPartitionThresholds)
    most = ctx.chunks_per_group(blocks * panels, min(shares.stripe, tunables["T_MC"]))
    height = shares.height(blocks, panels, most, ctx.caps)
    defines = {
        **tunables,
        **product.epilogue.defines,
        "DATA_T": product.dtype.cl,
        "OUT_T": product.y.dtype.compute,
        "Y_T": product.y.dtype.cl,
        "Y_STORAGE": product.y.dtype.storage,
    }
    kernel = KernelSpec.of("matmul/gemm_typed_cpu.cl", "gemm_typed_cpu", **defines)
    groups = ceil_div(blocks, height) * panels
    args = {**product.args, "b": b, "b_s0": b_s0, "b_s1": b_s1, **product.epilogue.args}
    multiply = launch(kernel, (groups,), (1,), product.flops, height=height, **args)
    return [*launches, *packing, multiply]

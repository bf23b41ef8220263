"""GEMM variants, shared by MatMul, Gemm, FusedMatMul and Conv."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.block_quantized import BlockQuantizedWeights
from clrt.kernels.cost import PlainEfficiency, work_of
from clrt.kernels.gemm_cpu import emit_cpu
from clrt.kernels.gemm_gpu import GPU_TILES, emit_gpu
from clrt.kernels.gemm_matrix_unit_gpu import GPU_UNIT, emit_unit, reject_unit
from clrt.kernels.gemm_problem import GemmProblem, merge
from clrt.kernels.gemm_small_m_cpu import SECOND_GEMM, RmsNormPrologue
from clrt.kernels.gemm_tile import is_whole, panel_width, select_tile
from clrt.kernels.gemm_typed import emit_typed_cpu, reject_typed
from clrt.kernels.quantized_panels_cpu import WIDTH, QuantizedPanels
from clrt.kernels.quantized_weights import QuantizedWeights
from clrt.kernels.spec import KernelSpec, Launch, launch, optional
from clrt.kernels.thresholds import Thresholds, Tunable, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import (
    Emit,
    Lowering,
    RejectReason,
    Variant,
    Work,
    always,
    reject_but_float32,
    reject_float64,
)
from clrt.util.math import ceil_div, round_up

EmitProduct: TypeAlias = Callable[[GemmProblem, Lowering], list[Launch]]

BLOCKS = tuned(
    "gemm_blocks_cpu",
    {"T_MR": (4, 6, 8), "T_NV": (2, 3), "T_VW": (4, 8, 16), "T_MB": (4, 8, 16)},
    T_MR=4,
    T_NV=3,
    T_VW=8,
    T_MB=Tunable(16, "row blocks", "Blocks of T_MR rows that share an unpacked block of B."),
    T_KC=Tunable(
        128, "elements of K", "Depth of B unpacked at a time, so that it stays in the L1 cache."
    ),
)
LEVELS = tuned("gemm_levels_cpu", {"T_VW": (4, 8, 16)}, T_VW=8)


class LowBitPartition(Thresholds):
    """Thresholds of the partition of a GEMM with low-bit weights (gemm_levels_cpu) over cores.

    Each work-group quantizes its rows itself, which takes as long as three to five panels of 32
    columns.
    """

    rows: int = tunable(
        32, "rows", "Maximum per work-group, which quantizes them before it multiplies."
    )
    groups: int = tunable(
        2,
        "work-groups per core",
        "Target if the rows alone give fewer; more would repeat the quantization of rows.",
    )

    group: ClassVar = "gemm_levels_shares"


def reject_any(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why the kernel gemm_any cannot run a node on a device; None if it can.

    Rejected are bool, and float64 on devices that do not support it.
    """
    if node.arg(0).dtype is DType.BOOL:
        return "no product of bool"
    return reject_float64(node, caps)


def emit_blocks_cpu(product: GemmProblem, ctx: Lowering) -> list[Launch]:
    """Returns launches of a float32 CPU GEMM that dequantizes a block-quantized B.

    Args:
        product: The GEMM, whose B is `BlockQuantizedWeights`; A has contiguous rows.

    Raises:
        UnsupportedError: The result or an operand of the epilogue is not float32, or operands of
            the epilogue need more than two batch axes.
    """
    product.epilogue.check_vectors()
    if product.is_empty:
        return []
    tunables = select_tile(BLOCKS, product, ctx)
    launches, product = merge(product, ctx)
    weights = product.weights
    assert isinstance(weights, BlockQuantizedWeights)
    defines = {
        **tunables,
        **product.epilogue.defines,
        "S_N_WHOLE": int(is_whole(product, tunables["T_VW"])),
        **weights.defines,
    }
    args = product.args | product.epilogue.args | weights.args(panel_width(tunables))
    chunks = ceil_div(product.m, tunables["T_MR"] * tunables["T_MB"])
    size = (chunks * ceil_div(product.n, panel_width(tunables)) * product.batches,)
    kernel = KernelSpec.of("matmul/gemm_blocks_cpu.cl", "gemm_blocks_cpu", **defines)
    return [*launches, launch(kernel, size, (1,), product.flops, **args)]


def reject_levels(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why `emit_levels_cpu` cannot run a node on a device; None if it can.

    The kernel needs int8 dot-product instructions. Simulators emulate these instructions in C.
    """
    if not caps.int8_dot_isa and not caps.simulator:
        return "needs instructions that multiply bytes"
    return reject_but_float32(node, caps)


def emit_levels_cpu(
    product: GemmProblem,
    ctx: Lowering,
    norm: RmsNormPrologue | None = None,
    second: QuantizedWeights | None = None,
) -> list[Launch]:
    """Returns launches of a CPU GEMM with low-bit B and A quantized to int8.

    Args:
        product: The GEMM, whose B is `QuantizedPanels`; A has contiguous float32 rows.
        norm: Normalization of A's rows before the product; None for none.
        second: B of a second GEMM of the same A, whose result the epilogue reads; None for none.

    Raises:
        UnsupportedError: The epilogue needs other types than float32, or has more than two batch
            axes.
    """
    product.epilogue.check_vectors()
    if product.is_empty:
        return []
    launches, product = merge(product, ctx)
    levels = product.weights
    assert isinstance(levels, QuantizedPanels)
    tunables = ctx.tunables(LEVELS)
    height, columns = _levels_shares(product, ctx)
    groups = ceil_div(product.m, height) * ceil_div(product.n, columns) * product.batches
    defines = {
        **levels.defines,
        **product.epilogue.defines,
        "T_VW": tunables["T_VW"],
        "S_N_WHOLE": int(is_whole(product, tunables["T_VW"])),
        "DOT_ISA": ctx.caps.int8_dot_isa,
        "FUSE_RMS_PROLOGUE": int(norm is not None),
    }
    if second is not None:
        defines["SECOND_GEMM"] = SECOND_GEMM
    kernel = KernelSpec.of("matmul/gemm_levels_cpu.cl", "gemm_levels_cpu", **defines)
    records = ctx.scratch(groups * levels.row_records(height), DType.UINT8)
    args = product.args | product.epilogue.args | levels.args(WIDTH) | {"records": records}
    args |= {"height": height, "columns": columns, **(norm.args if norm is not None else {})}
    args |= optional(b2=None if second is None else second.args(WIDTH)["b"])
    return [*launches, launch(kernel, (groups,), (1,), product.flops, **args)]


def _levels_shares(product: GemmProblem, ctx: Lowering) -> tuple[int, int]:
    """Returns the rows and columns of the result per work-group of `emit_levels_cpu`.

    Each work-group quantizes its rows of A. So if there are enough rows for all cores, a work-group
    computes all columns, and each row is quantized only once.
    """
    shares = ctx.thresholds(LowBitPartition)
    target_groups = shares.groups * ctx.caps.compute_units
    height = min(product.m, shares.rows)
    stripes = ceil_div(product.m, height) * product.batches
    spans = clamp(ceil_div(target_groups, stripes), 1, ceil_div(product.n, WIDTH))
    return height, round_up(ceil_div(product.n, spans), WIDTH)


def emit_any(product: GemmProblem, ctx: Lowering) -> list[Launch]:
    """Returns launches of a GEMM with one work-item per element of y, for any dtype."""
    if product.is_empty:
        return []
    launches, product = merge(product, ctx)
    defines = {
        **product.epilogue.defines,
        "DATA_T": product.dtype.cl,
        **product.b_defines,
        "ACC_T": product.accumulator,
        "OUT_T": product.y.dtype.compute,
        "Y_T": product.y.dtype.cl,
        "A_STORAGE": product.dtype.storage,
        "Y_STORAGE": product.y.dtype.storage,
    }
    kernel = KernelSpec.of("matmul/gemm_any.cl", "gemm_any", **defines)
    size = (product.n, product.m, product.batches)
    return [*launches, launch(kernel, size, None, product.flops, **product.strided_args)]


def variants(
    lowered: Callable[[EmitProduct], Emit],
    reject_reason: RejectReason = always,
    prefix: str = "",
    work: Work = work_of,
    gpu: Variant | None = None,
    typed: bool = True,
) -> tuple[Variant, ...]:
    """Returns the variants of an op that is computed by a GEMM, one per GEMM kernel.

    Args:
        lowered: Returns the op's `emit` function for a GEMM kernel, from the function that emits
            this kernel, such as `emit_cpu`.
        reject_reason: Returns why none of the variants can run a node; None if one may.
        prefix: Prefix of the variants' names.
        work: Returns the work of a node; the same for all variants.
        gpu: Variant that replaces gemm_gpu; None to keep it.
        typed: Whether to include gemm_typed_cpu, for float64 and 32- and 64-bit integers;
            `reject_reason` must accept these dtypes.
    """

    def both(kernel: RejectReason) -> RejectReason:
        return lambda node, caps: reject_reason(node, caps) or kernel(node, caps)

    name, reject = f"{prefix}gemm_typed_cpu", both(reject_typed)
    typed_variants = (Variant(name, lowered(emit_typed_cpu), reject, requires.CPU, work=work),)
    return (
        Variant(
            f"{prefix}gemm_cpu",
            lowered(emit_cpu),
            both(reject_but_float32),
            requires.CPU,
            work=work,
        ),
        gpu
        or Variant(
            f"{prefix}gemm_gpu",
            lowered(emit_gpu),
            both(reject_but_float32),
            GPU_TILES,
            work=work,
        ),
        *(typed_variants if typed else ()),
        Variant(
            f"{prefix}gemm_any",
            lowered(emit_any),
            both(reject_any),
            speed=PlainEfficiency,
            work=work,
        ),
    )


def unit_variant(lowered: Callable[[EmitProduct], Emit]) -> Variant:
    """Returns the variant "gemm_unit", which computes a GEMM on the matrix units of a GPU.

    Ops list it before their other variants.

    Args:
        lowered: Returns the op's `emit` function for a GEMM kernel, from the function that emits
            this kernel, such as `emit_cpu`.
    """
    return Variant("gemm_unit", lowered(emit_unit), reject_unit, GPU_UNIT)

"""CPU GEMM for at most 8 rows of A, optionally fused with a row norm of A and a second GEMM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from clrt.ir.cl_code import Code
from clrt.ir.graph import Value
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.gemm_cpu import CPU, pack_b
from clrt.kernels.gemm_problem import GemmProblem, merge
from clrt.kernels.gemm_tile import is_whole, panel_width, select_tile
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, launch
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.variant import Lowering
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up

MOST_ROWS = 8
"""Maximum number of rows of A for the small-M kernel."""
SECOND_GEMM = Code("second[i * T_NV + j]")
"""Expression by which an epilogue reads the second product of a launch: value of the macro."""


class SmallMThresholds(Thresholds):
    """Thresholds of the small-M kernel, which is compiled besides the general GEMM kernel."""

    narrow_kib: int = tunable(
        512,
        "KiB",
        "Minimum size of 16-bit weights: smaller ones save less time than the compilation takes.",
    )
    groups: int = tunable(
        4,
        "work-groups per core",
        "Target; more would repeat the normalization of A, which each does for itself.",
    )

    group: ClassVar = "few_rows"


@dataclass(frozen=True)
class RmsNormPrologue:
    """RMS normalization of A's rows before a GEMM, in the same launch.

    Attributes:
        scale: Factor per column of A, float32 `[columns]`.
        epsilon: Number added to the mean square before the root.
    """

    scale: Value
    epsilon: float

    @property
    def args(self) -> dict[str, Any]:
        """Kernel arguments of the macro NORM_ROWS."""
        return {"a_scale": self.scale, "epsilon": self.epsilon}


def emit_few_rows(
    product: GemmProblem, ctx: Lowering, norm: RmsNormPrologue | None, second: GemmProblem | None
) -> list[Launch]:
    """Returns the launches of a CPU GEMM for at most 8 rows of A.

    Args:
        product: The GEMM; A is a single matrix with contiguous rows, B a constant.
        norm: Normalization of A's rows before the product; None for none.
        second: A second GEMM of the same A, whose result the epilogue reads; None for none.

    Raises:
        UnsupportedError: The epilogue needs other types than float32.
    """
    product.epilogue.check_vectors()
    if product.is_empty:
        return []
    tunables = select_tile(CPU, product, ctx)
    panel = panel_width(tunables)
    _, product = merge(product, ctx)
    _, b, _ = pack_b(product, panel, ctx)
    groups_per_core = ctx.thresholds(SmallMThresholds).groups
    spans = clamp(groups_per_core * ctx.caps.compute_units, 1, ceil_div(product.n, panel))
    columns = round_up(ceil_div(product.n, spans), panel)
    groups = ceil_div(product.n, columns)
    defines = {
        "T_MR": 8 if tunables["T_MR"] >= 8 else 4,
        "T_NV": tunables["T_NV"],
        "T_VW": tunables["T_VW"],
        "S_N_WHOLE": int(is_whole(product, tunables["T_VW"])),
        "FUSE_RMS_PROLOGUE": int(norm is not None),
        **product.epilogue.defines,
        **product.b_defines,
    }
    args = product.args | product.epilogue.args | {"b": b, "columns": columns}
    if norm is not None:
        args |= norm.args | {"rows": ctx.scratch(groups * product.m * product.k)}
    if second is not None:
        _, merged = merge(second, ctx)
        defines["SECOND_GEMM"] = SECOND_GEMM
        args["b2"] = pack_b(merged, panel, ctx)[1]
    kernel = KernelSpec.of("matmul/few_rows_cpu.cl", "few_rows_cpu", **defines)
    flops = product.flops * (1 if second is None else 2)
    return [launch(kernel, (groups,), (1,), flops, **args)]


def of_rows(product: GemmProblem, rows: Value) -> GemmProblem:
    """Returns a GEMM with its A replaced by another tensor of the same shape.

    Args:
        product: The GEMM.
        rows: The new A.
    """
    return replace(product, a=replace(product.a, buffer=BufferArg(rows)))

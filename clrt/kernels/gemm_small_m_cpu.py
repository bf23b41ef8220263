"""Products of a few rows on CPUs, with what goes before and beside them in the same launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from clrt.ir.cl_code import Code
from clrt.ir.graph import Value
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.gemm_cpu import CPU, pack_b
from clrt.kernels.gemm_problem import GemmProblem, merge
from clrt.kernels.gemm_tile import is_whole, panel_width, select_tile
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, launch
from clrt.kernels.thresholds import Thresholds
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div, round_up

MOST_ROWS = 8
"""Of A, up to which the kernel is taken."""
# Work-groups for each core: each makes its rows anew.
_GROUPS = 4
SECOND = Code("second[i * T_NV + j]")
"""How an epilogue reads the second product of a launch."""


@dataclass(frozen=True)
class SmallMThresholds(Thresholds):
    """When the kernel pays that a product has beside that for more rows.

    Attributes:
        narrow_kib: Of weights in 16 bits, at least: shorter ones gain less than compiling takes.
    """

    narrow_kib: int

    group: ClassVar = "few_rows"


@dataclass(frozen=True)
class RmsNormPrologue:
    """That rows of A are divided by their root mean square, and scaled, before a product."""

    scale: Value
    epsilon: float

    @property
    def args(self) -> dict[str, Any]:
        """What NORM_ROWS declares."""
        return {"a_scale": self.scale, "epsilon": self.epsilon}


def emit_few_rows(
    product: GemmProblem, ctx: Lowering, norm: RmsNormPrologue | None, second: GemmProblem | None
) -> list[Launch]:
    """The launch of a product with a constant B, whose A is one matrix of rows.

    Args:
        norm: What is done to rows of A before.
        second: Another product of A, which is an operand of the epilogue.

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
    spans = clamp(_GROUPS * ctx.caps.compute_units, 1, ceil_div(product.n, panel))
    columns = round_up(ceil_div(product.n, spans), panel)
    groups = ceil_div(product.n, columns)
    defines = {
        "T_MR": 8 if tunables["T_MR"] >= 8 else 4,
        "T_NV": tunables["T_NV"],
        "T_VW": tunables["T_VW"],
        "S_N_WHOLE": int(is_whole(product, tunables["T_VW"])),
        "NORM": int(norm is not None),
        **product.epilogue.defines,
        **product.b_defines,
    }
    args = product.args | product.epilogue.args | {"b": b, "columns": columns}
    if norm is not None:
        args |= norm.args | {"rows": ctx.scratch(groups * product.m * product.k)}
    if second is not None:
        _, merged = merge(second, ctx)
        defines["SECOND"] = SECOND
        args["b2"] = pack_b(merged, panel, ctx)[1]
    kernel = KernelSpec.of("matmul/few_rows_cpu.cl", "few_rows_cpu", **defines)
    flops = product.flops * (1 if second is None else 2)
    return [launch(kernel, (groups,), (1,), flops, **args)]


def of_rows(product: GemmProblem, rows: Value) -> GemmProblem:
    """The product of other rows of the same form."""
    return replace(product, a=replace(product.a, buffer=BufferArg(rows)))

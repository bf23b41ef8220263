"""Launches of kernels that reduce or scan the middle axis of a tensor [outer, n, step].

`launch_columns` is for CPUs: a work-group computes vectors of neighbouring columns
(common/columns.clh). `launch_lines` is for any device: a work-item computes a line along the axis.
"""

from __future__ import annotations

from typing import ClassVar

from clrt.ir.cl_code import Define
from clrt.ir.graph import Value
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuned import TunedKernel
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div


class ColumnPartition(Thresholds):
    """Threshold of the partition of `launch_columns` into work-groups."""

    blocks: int = tunable(16, "outer indices", "Maximum per work-group, to amortize its start.")

    group: ClassVar = "column_shares"


def launch_columns(
    kernel: TunedKernel,
    source: str,
    x: Value,
    y: Value,
    sizes: tuple[int, int, int],
    flops: int,
    ctx: Lowering,
    **defines: Define,
) -> list[Launch]:
    """Returns the launch of a CPU kernel over vectors of columns; [] if x is empty.

    Args:
        kernel: The kernel, with the tunables T_NV and T_VW.
        source: File of the kernel under kernels_cl.
        x: Input, [outer, n, step].
        y: Output.
        sizes: outer, n and step, which the kernel takes as arguments, besides `blocks`, the number
            of outer indices per work-group.
        flops: Floating-point operations per element of x.
        defines: Additional macros of the kernel.
    """
    outer, n, step = sizes
    if not outer * n * step:
        return []
    tunables = ctx.tunables(kernel)
    column_groups = ceil_div(step, tunables["T_NV"] * tunables["T_VW"])
    blocks = ctx.chunks_per_group(outer * column_groups, ctx.thresholds(ColumnPartition).blocks)
    spec = KernelSpec.of(source, kernel.entry, **tunables, **defines)
    groups = (column_groups, ceil_div(outer, blocks))
    args = {"x": x, "y": y, "outer": outer, "n": n, "step": step, "blocks": blocks}
    return [launch(spec, groups, (1, 1), flops * outer * n * step, **args)]


def launch_lines(
    kernel: KernelSpec, x: Value, y: Value, sizes: tuple[int, int, int], flops: int
) -> list[Launch]:
    """Returns the launch of a kernel with one work-item per line along n; [] if x is empty.

    Args:
        kernel: The kernel.
        x: Input, [outer, n, step].
        y: Output.
        sizes: outer, n and step, which the kernel takes as arguments.
        flops: Floating-point operations per element of x.
    """
    outer, n, step = sizes
    if not outer * n * step:
        return []
    args = {"x": x, "y": y, "outer": outer, "n": n, "step": step}
    return [launch(kernel, (outer * step,), None, flops * outer * n * step, **args)]

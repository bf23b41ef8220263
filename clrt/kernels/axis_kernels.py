"""Kernels along one axis of [outer, n, step]: vectors of columns (common/columns.clh), or lines."""

from __future__ import annotations

from clrt.ir.cl_code import Define
from clrt.ir.graph import Value
from clrt.kernels.spec import KernelSpec, Launch, chunks_per_group, launch
from clrt.kernels.tuned import TunedKernel
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div

_BLOCKS = 16  # outer indices of a work-group, at most


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
    """The launch, unless there are no elements.

    Args:
        sizes: outer, n, step; the kernel takes them and how many outer indices a work-group has.
        flops: By element.
    """
    outer, n, step = sizes
    if not outer * n * step:
        return []
    tunables = ctx.tunables(kernel)
    pieces = ceil_div(step, tunables["T_NV"] * tunables["T_VW"])
    blocks = chunks_per_group(outer * pieces, _BLOCKS, ctx.caps)
    spec = KernelSpec.of(source, kernel.entry, **tunables, **defines)
    groups = (pieces, ceil_div(outer, blocks))
    args = {"x": x, "y": y, "outer": outer, "n": n, "step": step, "blocks": blocks}
    return [launch(spec, groups, (1, 1), flops * outer * n * step, **args)]


def launch_lines(
    kernel: KernelSpec, x: Value, y: Value, sizes: tuple[int, int, int], flops: int
) -> list[Launch]:
    """The launch of a kernel with a line to a work-item, unless there are no elements.

    Args:
        sizes: outer, n, step, which the kernel takes.
        flops: By element.
    """
    outer, n, step = sizes
    if not outer * n * step:
        return []
    args = {"x": x, "y": y, "outer": outer, "n": n, "step": step}
    return [launch(kernel, (outer * step,), None, flops * outer * n * step, **args)]

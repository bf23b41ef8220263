"""Kernels along one axis of [outer, n, step]: vectors of columns (common/columns.clh), or lines."""

from __future__ import annotations

from clrt.ir.code import Define
from clrt.kernels.spec import Arg, BufferArg, KernelSpec, Launch, ceil_div, i32, pieces_per_group
from clrt.kernels.tuned import TunedKernel
from clrt.kernels.variant import Lowering

_BLOCKS = 16  # outer indices of a work-group, at most


def launch_columns(
    kernel: TunedKernel,
    source: str,
    buffers: tuple[BufferArg, BufferArg],
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
    blocks = pieces_per_group(outer * pieces, _BLOCKS, ctx.caps)
    spec = KernelSpec.of(source, kernel.entry, **tunables, **defines)
    args: tuple[Arg, ...] = (*buffers, *(i32(v) for v in (*sizes, blocks)))
    groups = (pieces, ceil_div(outer, blocks))
    return [Launch(spec, groups, (1, 1), args, flops * outer * n * step)]


def launch_lines(
    kernel: KernelSpec,
    buffers: tuple[BufferArg, BufferArg],
    sizes: tuple[int, int, int],
    flops: int,
) -> list[Launch]:
    """The launch of a kernel with a line to a work-item, unless there are no elements.

    Args:
        sizes: outer, n, step, which the kernel takes.
        flops: By element.
    """
    outer, n, step = sizes
    if not outer * n * step:
        return []
    args: tuple[Arg, ...] = (*buffers, *(i32(v) for v in sizes))
    return [Launch(kernel, (outer * step,), None, args, flops * outer * n * step)]

"""Launches of GPU kernels whose work-items cooperate on rows (common/group.clh)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from clrt.device import requires
from clrt.ir.cl_code import Define
from clrt.ir.symbolic_trace import pure
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.thresholds import Thresholds, Tunable, tunable
from clrt.kernels.tuned import TunedKernel, tuned
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div


class RowItems(Thresholds):
    """Threshold of the number of work-items that share a row."""

    elems: int = tunable(
        4, "elements", "Minimum per work-item: with fewer, it would mostly wait at barriers."
    )

    group: ClassVar = "row_items"


def of_groups(entry: str, **others: int | Tunable) -> TunedKernel:
    """Declares a kernel whose work-items cooperate on rows (macro GROUP_ROW, common/group.clh).

    Returns the kernel with the tunable T_ITEMS, the work-items per work-group, and `others`.

    Args:
        entry: Entry point of the kernel.
        others: Declarations of other tunables, as in `tuned`.
    """
    return tuned(entry, {"T_ITEMS": (64, 128, 256)}, T_ITEMS=128, **others)


@pure
def lanes_of(n: int, items: int, *, elems: int) -> int:
    """Returns the number of work-items that share a row, a power of two.

    Args:
        n: Elements per row.
        items: Maximum number of work-items per row.
        elems: `RowItems.elems`.
    """
    lanes = 1
    while lanes < items and lanes * elems < n:
        lanes *= 2
    return lanes


def launch_rows(
    kernel: TunedKernel,
    source: str,
    rows: int,
    n: int,
    flops: int,
    ctx: Lowering,
    args: Mapping[str, Any],
    times: int = 1,
    /,
    **defines: Define,
) -> list[Launch]:
    """Returns the launch of a kernel whose work-items cooperate on rows (macro GROUP_ROW).

    Args:
        kernel: The kernel, with the tunable T_ITEMS.
        source: File of the kernel under kernels_cl.
        rows: Number of rows.
        n: Elements per row.
        flops: Floating-point operations of the launch.
        args: Kernel arguments except `rows`, `n` and `lanes`.
        times: Factor on T_ITEMS, applied if the device allows work-groups of that size.
        defines: Additional macros of the kernel.

    Raises:
        UnsupportedError: The device does not support work-groups of T_ITEMS, or is a CPU.
    """
    tunables = ctx.tunables(kernel)
    if tunables["T_ITEMS"] * times <= ctx.caps.max_work_group_size:
        tunables["T_ITEMS"] *= times
    items = tunables["T_ITEMS"]
    ctx.require(replace(requires.GPU, work_group_size=items))
    lanes = lanes_of(n, items, elems=ctx.thresholds(RowItems).elems)
    spec = KernelSpec.of(source, kernel.entry, VW=1, **tunables, **defines)
    size = ceil_div(rows, items // lanes) * items
    return [launch(spec, (size,), (items,), flops, **args, rows=rows, n=n, lanes=lanes)]

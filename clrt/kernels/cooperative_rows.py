"""Rows that the work-items of a group share, on GPUs (common/group.clh)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clrt.device import requires
from clrt.ir.cl_code import Define
from clrt.ir.symbolic_trace import pure
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.tuned import TunedKernel, tuned
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div

# What a lane has at least of a row; less would wait for the others more than it computes.
_ELEMENTS = 4


def of_groups(entry: str, **others: int) -> TunedKernel:
    """Declares a kernel that has `GROUP_ROW`, and maybe other tunables."""
    return tuned(entry, {"T_ITEMS": (64, 128, 256)}, T_ITEMS=128, **others)


@pure
def lanes_of(n: int, items: int) -> int:
    """How many work-items have a row of n elements: a power of two, at most `items`."""
    lanes = 1
    while lanes < items and lanes * _ELEMENTS < n:
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
    """The launch of a kernel that has `GROUP_ROW`, for rows of n elements.

    Args:
        times: How many times as many work-items a group has, where the device has as large ones.

    Raises:
        UnsupportedError: The device has no work-groups as large.
    """
    tunables = ctx.tunables(kernel)
    if tunables["T_ITEMS"] * times <= ctx.caps.max_work_group_size:
        tunables["T_ITEMS"] *= times
    items = tunables["T_ITEMS"]
    ctx.require(replace(requires.GPU, work_group_size=items))
    lanes = lanes_of(n, items)
    spec = KernelSpec.of(source, kernel.entry, VW=1, **tunables, **defines)
    size = ceil_div(rows, items // lanes) * items
    return [launch(spec, (size,), (items,), flops, **args, rows=rows, n=n, lanes=lanes)]

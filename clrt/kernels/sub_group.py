"""Sub-groups of kernels that keep much in registers (kernels_cl/common/sub_group.clh)."""

from __future__ import annotations

from clrt.device.caps import DeviceCaps
from clrt.ir.cl_code import Define

# Intel's compiler takes smaller ones by itself, which have more registers for a work-item. Where
# there are none it takes larger ones, and spills.
_SIZE = 16


def sub_group_of(caps: DeviceCaps) -> dict[str, Define]:
    """The macro that sets their size; none where the compiler chooses it well."""
    sizes = caps.sub_group_sizes
    return {"F_SUB_GROUP": _SIZE} if sizes and min(sizes) == _SIZE else {}

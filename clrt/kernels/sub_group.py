"""Required sub-group size of register-heavy kernels (kernels_cl/common/sub_group.clh)."""

from __future__ import annotations

from clrt.device.caps import DeviceCaps
from clrt.ir.cl_code import Define

# Required on devices whose smallest sub-group size this is: Intel's compiler would choose a larger
# one there and spill registers. On devices with smaller sizes, which leave more registers per
# work-item, it chooses well itself.
_SIZE = 16


def sub_group_of(caps: DeviceCaps) -> dict[str, Define]:
    """Returns the macro F_SUB_GROUP that sets the sub-group size; {} to let the compiler choose."""
    sizes = caps.sub_group_sizes
    return {"F_SUB_GROUP": _SIZE} if sizes and min(sizes) == _SIZE else {}

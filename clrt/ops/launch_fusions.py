"""Launch fusion rules by the op of a region's last node.

A rule is in the tuple `LAUNCH_FUSIONS` of its module, which `clrt.ops.index` lists.
"""

from __future__ import annotations

from clrt.ir.op import IrOp
from clrt.kernels.fusion import LaunchFusionRule
from clrt.ops.index import FUSION_RULES
from clrt.ops.module_index import ModuleIndex, class_key

_INDEX = ModuleIndex(FUSION_RULES)
_BY_CLASS: dict[type[IrOp], tuple[LaunchFusionRule, ...]] = {}


def launch_fusions(cls: type[IrOp]) -> tuple[LaunchFusionRule, ...]:
    """Returns the rules that may match a region whose last node has an op of class `cls`.

    The rules are sorted by the size of their regions, the largest first, then by name, so that the
    order does not depend on which modules were imported before.
    """
    if cls not in _BY_CLASS:
        modules = {m for base in cls.__mro__ for m in _INDEX.load(class_key(base))}
        rules = (r for m in modules for r in m.LAUNCH_FUSIONS if issubclass(cls, r.last))
        _BY_CLASS[cls] = tuple(sorted(rules, key=lambda r: (-r.size, r.name)))
    return _BY_CLASS[cls]

"""Finds weights that all plans read in one and the same packed layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clrt.ir.graph import Value
from clrt.kernels.spec import BufferArg, PackedWeight
from clrt.plan.plan import Plan
from clrt.plan.steps import DeviceStep


def packed_weights(plans: Sequence[Plan]) -> list[PackedWeight]:
    """Returns the packed weights of constants that plans read in a single packed layout.

    Constants that any plan reads unpacked, or in another layout, are left out.
    """
    forms: dict[Any, dict[str, PackedWeight | None]] = {}
    for plan in plans:
        for step in plan.steps:
            for launch in step.launches if isinstance(step, DeviceStep) else ():
                for arg in launch.args:
                    buffer = arg.buffer if isinstance(arg, BufferArg) else None
                    if isinstance(buffer, PackedWeight):
                        forms.setdefault(buffer.value, {})[buffer.layout] = buffer
                    elif isinstance(buffer, Value) and buffer.is_constant:
                        forms.setdefault(plan.root(buffer), {})[""] = None
            if not isinstance(step, DeviceStep):
                for value in step.node.inputs:
                    forms.setdefault(value, {})[""] = None
    only = [next(iter(f.values())) for f in forms.values() if len(f) == 1]
    return [p for p in only if p is not None]

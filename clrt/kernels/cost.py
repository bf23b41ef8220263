"""What a kernel variant costs: the seconds predicted of its work at a device's rates."""

from __future__ import annotations

from dataclasses import dataclass

from clrt.device.caps import DeviceCaps
from clrt.device.device_rates import rates_of
from clrt.ir.graph import Node
from clrt.ir.symbolic_trace import untraced


@dataclass(frozen=True)
class WorkEstimate:
    """What a variant does for a node, padding and copies of its own included.

    Attributes:
        flops: Floating-point operations.
        nbytes: Bytes read and written.
    """

    flops: int
    nbytes: int = 0
    launches: int = 1


@dataclass(frozen=True)
class Efficiency:
    """The shares of a device's rates that the kernels of a variant reach."""

    compute: float = 0.8
    memory: float = 0.5


FAST = Efficiency()
PLAIN = Efficiency(0.1, 0.1)  # one work-item per element, nothing kept in registers


def work_of(node: Node) -> WorkEstimate:
    """What every variant does at least: the op's own operations, each operand moved once."""
    values = {v: None for v in (*node.inputs, *node.outputs) if v is not None}
    flops = node.op.flops(node.input_types, [v.type for v in node.outputs])
    return WorkEstimate(flops, sum(v.nbytes for v in values))


def seconds(work: WorkEstimate, speed: Efficiency, caps: DeviceCaps) -> float:
    """The time predicted: computing and moving overlap, starting does not."""
    rates = rates_of(caps)
    computing = untraced(work.flops) / (rates.flops * speed.compute)
    moving = untraced(work.nbytes) / (rates.nbytes * speed.memory)
    return work.launches * rates.launch_s + max(computing, moving)

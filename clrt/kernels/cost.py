"""Cost model of kernel variants: predicts seconds from FLOPs, bytes and launches."""

from __future__ import annotations

from dataclasses import dataclass

from clrt.device.caps import DeviceCaps
from clrt.device.device_rates import rates_of
from clrt.ir.graph import Node
from clrt.ir.symbolic_trace import untraced


@dataclass(frozen=True)
class WorkEstimate:
    """Work of a variant on one node, including padding and copies.

    Attributes:
        flops: Floating-point operations.
        nbytes: Bytes read and written.
        launches: Number of kernel launches.
    """

    flops: int
    nbytes: int = 0
    launches: int = 1


@dataclass(frozen=True)
class Efficiency:
    """Fractions of a device's peak rates that the kernels of a variant reach.

    Attributes:
        compute: Fraction of the rate of floating-point operations.
        memory: Fraction of the memory bandwidth.
    """

    compute: float = 0.8
    memory: float = 0.5


FAST = Efficiency()
PLAIN = Efficiency(0.1, 0.1)  # kernels with one work-item per element and no register blocking


def work_of(node: Node) -> WorkEstimate:
    """Returns the minimum work of a node: its op's FLOPs, and each operand read or written once."""
    values = {v: None for v in (*node.inputs, *node.outputs) if v is not None}
    flops = node.op.flops(node.input_types, [v.type for v in node.outputs])
    return WorkEstimate(flops, sum(v.nbytes for v in values))


def seconds(work: WorkEstimate, speed: Efficiency, caps: DeviceCaps) -> float:
    """Returns the predicted time of a kernel variant in seconds.

    Compute and memory time overlap; launch overhead is added.

    Args:
        work: Work of the variant on a node.
        speed: Fractions of the device's peak rates that the variant reaches.
    """
    rates = rates_of(caps)
    computing = untraced(work.flops) / (rates.flops * speed.compute)
    moving = untraced(work.nbytes) / (rates.nbytes * speed.memory)
    return work.launches * rates.launch_s + max(computing, moving)

"""The steps of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from clrt.ir.graph import Node, Value
from clrt.kernels.spec import KernelSpec, Launch, Scratch


@dataclass(frozen=True)
class DeviceStep:
    """A node that runs on the device.

    Attributes:
        variant: Name of the kernel variant.
        rejected: Why earlier variants were not taken.
        within: The node before it whose launches do the work of this one, too.
        idle: DeviceStep that it launches at other shapes.
    """

    node: Node
    variant: str
    launches: tuple[Launch, ...]
    rejected: tuple[str, ...] = ()
    within: Node | None = None
    idle: tuple[KernelSpec, ...] = ()


@dataclass(frozen=True)
class HostStep:
    """A node that runs its NumPy reference on the host.

    Attributes:
        reason: Why no kernel variant fits.
    """

    node: Node
    reason: str


PlanStep: TypeAlias = "DeviceStep | HostStep"


Placed: TypeAlias = "Value | Scratch"

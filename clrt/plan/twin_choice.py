"""Chooses the device of a plan: the device itself, or its twin, which runs on one core.

The twin runs kernels on the calling thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Node, Value
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.size_formulas import excess
from clrt.kernels.spec import BufferArg, Launch, PackedWeight, StatusWord
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.ops.base import Op
from clrt.plan.plan import Plan
from clrt.plan.steps import DeviceStep
from clrt.util import env_vars

# Cost of waking threads that does not depend on their number, in threads: the times in `TwinCosts`
# are proportional to (threads + _FIXED_THREADS). Measured.
_FIXED_THREADS = 12


class TwinCosts(Thresholds):
    """Time that a device needs beyond its twin for its threads, and the speed of one core.

    Measured with PoCL 3.0 on two cores of a virtual machine, over 117 nets of 0.02 to 10 ms: a run
    takes 80 us and 4.3 us per launch on the device, 26 us and 1.7 us on the twin; and launches
    shorter than 60 us are no faster on two cores than on one. The delay is 200 us with 16 threads
    on these two cores, and 90 us if woken threads do not preempt others (`chrt -b`), as on 16
    cores.
    """

    group: ClassVar = "twin_costs"
    threads: int = tunable(
        2, "threads", "Threads of the device on which the times of this group were measured."
    )
    wake_ns: int = tunable(
        50_000, "nanoseconds per run", "Time to wake the device's threads, and the waiting thread."
    )
    launch_ns: int = tunable(
        2_500, "nanoseconds per launch", "Time by which the device takes longer to launch."
    )
    delay_ns: int = tunable(
        50_000, "nanoseconds per launch", "Time until other cores join in: shorter launches end."
    )
    mflops: int = tunable(
        80_000, "million operations per second", "Rate of small launches on one core."
    )
    mbytes: int = tunable(25_000, "million bytes per second", "Rate of small launches on one core.")

    def for_threads(self, threads: int) -> TwinCosts:
        """Returns these costs scaled to a device with `threads` threads.

        A launch wakes all of them, so the times grow with their number.
        """

        def scaled(ns: int) -> int:
            return ns * (threads + _FIXED_THREADS) // (self.threads + _FIXED_THREADS)

        times = {n: scaled(getattr(self, n)) for n in ("wake_ns", "launch_ns", "delay_ns")}
        return TwinCosts(**{**self.stored_fields(), **times, "threads": threads})


def is_faster_on_twin(plan: Plan, caps: DeviceCaps, costs: TwinCosts) -> bool:
    """Returns whether a plan is expected to run faster on the device's twin, on one core.

    It is if threads cost more time on the device than its other cores save in launches of several
    work-groups. CLRT_TWINS overrides the estimate; plans with host steps never run on the twin.
    With traced sizes, the comparison becomes a guard of the trace.

    Args:
        plan: Plan for the device, or for the twin.
        caps: Capabilities of the device.
        costs: Costs as measured with `costs.threads` threads; scaled here to the device's threads.
    """
    setting = env_vars.TWINS.get()
    if plan.host_steps or setting == "off":
        return False
    if setting == "on":
        return True
    costs = costs.for_threads(caps.compute_units)
    saved_ns: Any = 0
    for step in plan.steps:
        if isinstance(step, DeviceStep):
            for launch in step.launches:
                ns = launch.flops * 1000 // costs.mflops
                ns += _nbytes(step.nodes, launch) * 1000 // costs.mbytes
                cores = clamp(_groups(launch), 1, max(caps.cores, 2))
                saved_ns += excess(ns, costs.delay_ns) * (cores - 1) // cores
    return bool(saved_ns < costs.wake_ns + plan.launches * costs.launch_ns)


def _groups(launch: Launch) -> Any:
    """Returns the number of work-groups of a launch; of work-items, if it has no local size."""
    return prod(launch.global_size) // prod(launch.local_size or (1,))


def _nbytes(nodes: Sequence[Node], launch: Launch) -> Any:
    """Returns about how many bytes a launch reads and writes; a traced number for traced sizes.

    Does not count an input that the op reads in part, such as the table of Gather, nor an output
    that each launch writes in part.

    Args:
        nodes: Nodes of the launch's step; the traits of the first one's op are used.
    """
    op = nodes[0].op_as(Op)
    index = op.memory_traits.partially_read_input
    table = None if index is None else nodes[0].inputs[index]
    total: Any = 0
    seen = set()
    for arg in launch.args:
        if not isinstance(arg, BufferArg) or isinstance(arg.buffer, StatusWord):
            continue
        buffer = arg.buffer
        source = buffer.value if isinstance(buffer, PackedWeight) else buffer
        if source is table and table is not None:
            continue
        is_written = isinstance(buffer, Value) and buffer.producer in nodes
        if is_written and op.memory_traits.partially_writes_output:
            continue
        if arg.elems is not None and not isinstance(buffer, PackedWeight):
            total += arg.elems * buffer.dtype.itemsize
        elif buffer not in seen:
            seen.add(buffer)
            total += buffer.nbytes
    return total

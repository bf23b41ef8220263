"""`Recorder`: runs plans on a profiling queue, and records when each step ran."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field

from clrt.ir.graph import Node
from clrt.plan.steps import HostStep
from clrt.runtime.execution.argument_patcher import BoundLaunch
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.opencl.device_context import RunQueue
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.session import DeviceSession
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class Span:
    """Start and end of a step, in nanoseconds of the host's `time.perf_counter_ns`."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class PlanRun:
    """One profiled run of a plan.

    Attributes:
        spans: Span of each launch and host step, in the order of the plan.
    """

    bound: BoundPlan
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class NodeRun:
    """One profiled computation of a host-driven node, which runs between plans."""

    node: Node
    span: Span


@dataclass
class Recorder:
    """Runs the steps of plans on its own profiling queue, and records when each step ran."""

    session: DeviceSession
    _runs: list[PlanRun | NodeRun] = field(default_factory=list)
    # By whether the queue is of the device's twin.
    _queues: dict[bool, cl.CommandQueue] = field(default_factory=dict)

    def _queue(self, bound: BoundPlan) -> cl.CommandQueue:
        """Returns the profiling queue of the device that a plan runs on."""
        on_twin = bound.lane.on_twin
        if on_twin not in self._queues:
            self._queues[on_twin] = cl.CommandQueue(
                self.session.context,
                bound.programs.cache.device,
                properties=cl.command_queue_properties.PROFILING_ENABLE,
            )
        return self._queues[on_twin]

    def take(self) -> tuple[PlanRun | NodeRun, ...]:
        """Returns the runs of plans and nodes recorded since the last call, in order."""
        runs, self._runs = tuple(self._runs), []
        return runs

    def record_steps(
        self,
        bound: BoundPlan,
        steps: Sequence[BoundLaunch | HostStep],
        run_host: Callable[[HostStep], None],
    ) -> None:
        """Runs the steps of a plan on the profiling queue, and records when each ran.

        First waits for the copies of inputs, which are in another queue: that of the plan.

        Args:
            bound: Plan to which the steps belong.
            steps: Bound launches and host steps, in order.
            run_host: Computes a host step.
        """
        bound.lane.finish()
        queue = self._queue(bound)
        try:
            spans = self._record(bound.lane, queue, steps, run_host)
        finally:  # commands still queued here use the arena, which the next run overwrites
            try:
                queue.finish()
            except cl.Error:
                queue.finish()
                raise
        self._runs.append(PlanRun(bound, tuple(spans)))

    def _record(
        self,
        lane: RunQueue,
        queue: cl.CommandQueue,
        steps: Sequence[BoundLaunch | HostStep],
        run_host: Callable[[HostStep], None],
    ) -> list[Span]:
        """Runs the steps of a plan, and returns the span of each in order.

        Args:
            lane: Queue of the plan, which copies the inputs and outputs of host steps.
            queue: Profiling queue of the launches.
            steps: Bound launches and host steps, in order.
            run_host: Computes a host step.
        """
        spans: list[Span] = []
        pending: list[cl.Event] = []
        began_ns = 0
        for step in steps:
            if isinstance(step, HostStep):
                spans += _wait(queue, pending, began_ns)
                pending = []
                start = time.perf_counter_ns()
                run_host(step)
                lane.finish()
                spans.append(Span(start, time.perf_counter_ns()))
                continue
            if not pending:
                began_ns = time.perf_counter_ns()
            pending.append(
                cl.enqueue_nd_range_kernel(queue, step.kernel, step.global_size, step.local_size)
            )
        return spans + _wait(queue, pending, began_ns)

    def record_node(self, node: Node, start_ns: int) -> None:
        """Records that the host has just computed a host-driven node.

        Args:
            node: The node.
            start_ns: Time at which the computation began, from `time.perf_counter_ns`.
        """
        self._runs.append(NodeRun(node, Span(start_ns, time.perf_counter_ns())))


def _wait(queue: cl.CommandQueue, events: Sequence[cl.Event], began_ns: int) -> list[Span]:
    """Waits for launches and returns the span of each; an empty list if there are none.

    Args:
        queue: Queue of the launches.
        events: Events of the launches, in order.
        began_ns: Host time at which the first launch was enqueued, from
            `time.perf_counter_ns`.
    """
    queue.finish()
    if not events:
        return []
    # OpenCL 1.2 has no clock in common with the host, but reports when a command was queued.
    shift = began_ns - events[0].profile.queued
    return [Span(e.profile.start + shift, e.profile.end + shift) for e in events]

"""Errors for runs that have no room on the device."""

from __future__ import annotations

from clrt.errors import OutOfMemoryError
from clrt.plan import memory as sizes
from clrt.runtime.execution.planner import PlannedSegment, Planner
from clrt.runtime.opencl.ledger import BUDGET
from clrt.util.formatting import format_bytes, format_shapes


def no_room(
    planner: Planner, stage: PlannedSegment, of: str, error: OutOfMemoryError | None = None
) -> OutOfMemoryError:
    """The error for a stage over its model's limit, or for one that the driver gave no room.

    Args:
        of: What gives the limit, "memory_limit allows" say.
        error: Of the driver; None where the limit refuses it.
    """
    plan, limit = stage.plan, planner.limit
    memory = planner.memory(plan, stage.graph_break)
    shapes = {v.name: v.dims for v in plan.graph.inputs}
    if error is not None and memory.device_bytes <= limit:
        needed = memory.device_bytes
        return OutOfMemoryError(
            f"Running {format_shapes(shapes)} needs {format_bytes(needed)} on the device, "
            f"and failed with nothing of other shapes there, too: {error}",
            needed,
            error.available_bytes,
        )
    fitting = planner.fitting_batch_for(shapes)
    return sizes.out_of_memory(format_shapes(shapes), memory, limit, of, fitting)


def over_budget(planner: Planner, stage: PlannedSegment) -> OutOfMemoryError:
    """The error for a stage that does not fit beside what is held of the budget of all models."""
    memory = planner.memory(stage.plan, stage.graph_break)
    shapes = {v.name: v.dims for v in stage.plan.graph.inputs}
    left = max(int(min(BUDGET.left, BUDGET.limit or 0)), 0)
    of = "set_memory_budget leaves, beside what is held of it,"
    fitting = planner.fitting_batch_for(shapes, left)
    return sizes.out_of_memory(format_shapes(shapes), memory, left, of, fitting)

"""Out-of-memory errors that state the needed bytes and the largest batch that fits."""

from __future__ import annotations

from clrt.errors import OutOfMemoryError
from clrt.plan import memory as sizes
from clrt.runtime.execution.planner import PlannedSegment, Planner
from clrt.runtime.opencl.ledger import BUDGET
from clrt.util.formatting import format_bytes, format_shapes


def no_room(
    planner: Planner, stage: PlannedSegment, of: str, error: OutOfMemoryError | None = None
) -> OutOfMemoryError:
    """Returns the error for a segment that exceeds its model's limit, or that the driver refused.

    Args:
        planner: Planner of the segment's model.
        stage: Segment that cannot run.
        of: Words of the message that name the limit, such as "memory_limit allows".
        error: Error of the driver; None if the segment exceeds the limit.
    """
    plan, limit = stage.plan, planner.limit
    memory = planner.memory(plan, stage.graph_break)
    shapes = {v.name: v.dims for v in plan.graph.inputs}
    if error is not None and memory.device_bytes <= limit:
        needed = memory.device_bytes
        return OutOfMemoryError(
            f"Running {format_shapes(shapes)} needs {format_bytes(needed)} on the device, and "
            f"failed even after the memory of other shapes was freed: {error}",
            needed,
            error.available_bytes,
        )
    fitting = planner.fitting_batch_for(shapes)
    return sizes.out_of_memory(format_shapes(shapes), memory, limit, of, fitting)


def over_budget(planner: Planner, stage: PlannedSegment) -> OutOfMemoryError:
    """Returns the error for a segment that exceeds the unused memory budget of all models.

    The message states the largest batch size that would fit.

    Args:
        planner: Planner of the segment's model.
        stage: Segment that cannot run.
    """
    memory = planner.memory(stage.plan, stage.graph_break)
    shapes = {v.name: v.dims for v in stage.plan.graph.inputs}
    left = max(int(min(BUDGET.left, BUDGET.limit or 0)), 0)
    of = "set_memory_budget leaves, beside what is held of it,"
    fitting = planner.fitting_batch_for(shapes, left)
    return sizes.out_of_memory(format_shapes(shapes), memory, left, of, fitting)

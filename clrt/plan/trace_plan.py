"""Traces the planning of a graph, which creates a plan template."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from clrt.ir.dims import Bindings
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.ir.symbolic_trace import ShapeTrace, is_traced
from clrt.kernels.spec import PackedWeight
from clrt.plan.arena import Arena
from clrt.plan.arena_relayout import StackingOrder
from clrt.plan.make_plan import arena_buffers
from clrt.plan.plan import Plan
from clrt.plan.specialise import specialise_to_break
from clrt.plan.steps import launches_of
from clrt.plan.template import ArenaBuffers, PlanTemplate, varies

_LOG = logging.getLogger(__name__)


def trace_plan(
    graph: Graph,
    bindings: Bindings,
    shapes: Mapping[str, tuple[int, ...]],
    known: Mapping[str, Array],
    make: Callable[[Graph], Plan],
    donated: Collection[str] = (),
) -> PlanTemplate | None:
    """Plans a graph with traced sizes, so that plans for other sizes follow from formulas.

    Args:
        bindings: Size of each symbol of the input shapes.
        shapes: Shapes of the inputs for which the model declares none, by name.
        known: Elements of inputs to turn into constants, by name.
        make: Plans a specialised graph.
        donated: Names of inputs whose memory the plan may overwrite.

    Returns:
        The template. None if symbols do not determine the shapes of all
        inputs, or if planning fails; also if the plan has a graph break, a host step, or a packed
        weight that depends on the sizes.
    """
    if any(not v.type.bind(bindings).is_static for v in graph.inputs):
        return None
    trace = ShapeTrace(bindings)
    try:
        first, graph_break = specialise_to_break(graph, trace.start(), shapes, known, donated)
        if graph_break is not None:
            return None
        plan = make(first)
        return template_of(trace, plan) if _can_instantiate(plan) else None
    except Exception:
        # Planning without a trace reports errors of the sizes.
        _LOG.debug("no template of %s", graph.name, exc_info=True)
        return None


def pinned_template(graph: Graph, bindings: Bindings, plan: Plan) -> PlanTemplate | None:
    """Returns a template that holds only at the sizes of a plan that was made without a trace.

    Args:
        graph: The planned graph.
        bindings: Size of each symbol of its input shapes.
        plan: The plan, without host steps.

    Returns:
        The template; None if symbols do not determine the shapes of all inputs.
    """
    if any(not v.type.bind(bindings).is_static for v in graph.inputs):
        return None
    trace = ShapeTrace(bindings)
    trace.pin_all()
    return template_of(trace, plan)


def template_of(trace: ShapeTrace, plan: Plan) -> PlanTemplate:
    """Returns the template of a plan that was made with traced sizes.

    Args:
        trace: Formulas of the plan's numbers.
    """
    buffers = arena_buffers(plan)
    intervals = [interval for _, interval in buffers]
    places = [plan.allocations[owner] for owner, _ in buffers]
    slabs, offsets = tuple(p.slab for p in places), tuple(p.offset_bytes for p in places)
    layout = StackingOrder.from_arena(intervals, Arena(slabs, offsets, plan.arena.slab_bytes))
    waste = plan.arena.nbytes / max(plan.live_bytes, 1)
    spans = tuple((i.first, i.last) for i in intervals)
    owners = tuple(owner for owner, _ in buffers)
    return PlanTemplate(trace, plan, ArenaBuffers(owners, spans, layout, waste))


def _can_instantiate(plan: Plan) -> bool:
    """Returns whether a traced plan can be evaluated at other sizes.

    This requires that the plan has no host steps, and no packed weights that depend on the sizes.
    """
    if plan.host_steps:
        return False
    buffers = (b for x in launches_of(plan.steps) for b in x.buffers)
    packed = (b for b in buffers if isinstance(b, PackedWeight))
    return not any(is_traced(b.nbytes) or varies(b.value) for b in packed)

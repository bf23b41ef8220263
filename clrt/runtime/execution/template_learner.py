"""`TemplateLearner`: makes plan templates before runs need them, and for executables.

Kernels differ for one row and several, and for few elements and many. So a model needs a few
templates (MiniLM 11, a Llama export 9, ResNet-50 2), of which the first run's shapes need one. The
others are found by guessing input shapes at which no template holds.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from clrt.errors import ClrtError
from clrt.ir.dims import Bindings
from clrt.ir.graph import Graph
from clrt.plan.device_io import DeviceIo
from clrt.plan.memory import Shapes
from clrt.plan.plan import Plan
from clrt.plan.stored_template import StoredTemplate
from clrt.plan.template import PlanTemplate
from clrt.runtime.execution.likely_shapes import likely_shapes
from clrt.runtime.execution.plan_arguments import NOTHING, bindings_of
from clrt.util.background import BACKGROUND, yield_point
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.runtime.execution.planner import Planner

# Seconds after which no further shapes are tried when an executable is written, and number of the
# first shapes that are tried in any case: those of a run, and the likeliest guess.
_MAX_GUESSING_S = 0.5
_NUM_FIRST = 2


@dataclass(eq=False)
class TemplateLearner:
    """Makes templates of a planner's graph.

    Attributes:
        planner: Planner of the model.
        is_due: Whether runs have made plans since `learn_later` was called.
    """

    planner: Planner
    is_due: bool = False

    def learn_later(self) -> None:
        """Makes templates in the background, if runs have made plans that could have some."""
        if self.is_due:
            self.is_due = False
            BACKGROUND.submit(partial(_learn, ref(self)))

    def seen(self, graph: Graph) -> list[tuple[Shapes, DeviceIo]]:
        """Returns the first plans of a graph: for each, its input shapes and its `DeviceIo`.

        Each `DeviceIo` has one first plan. Plans from stored templates are no first plans.
        """
        families = self._families(graph)
        return [(_shapes_of(first[1]), io) for _, _, io, first in families if first is not None]

    def learned(self, graph: Graph) -> list[PlanTemplate | StoredTemplate]:
        """Returns the templates of a graph, stored ones included.

        Before that, makes templates for the shapes of each first plan and for likely shapes, if no
        template holds there. If a first plan cannot be traced, its template holds at its own shapes
        only, and is not kept for runs, which have the plan.

        Args:
            graph: Graph of the model, or one specialised for its inputs.
        """
        found: list[PlanTemplate | StoredTemplate] = []
        end_s = time.monotonic() + _MAX_GUESSING_S
        for key, _, device_io, first in self._families(graph):
            if first is not None:
                self._learn(key, graph, device_io, *first, end_s)
            found += self.planner.templates.of(key)
            if first is not None and not self.planner.templates.holds(key, first[0]):
                found += self._pinned(graph, *first)
        return found

    def _pinned(self, graph: Graph, bindings: Bindings, plan: Plan) -> list[PlanTemplate]:
        """Returns the template that holds only at a plan's own shapes; [] if there can be none."""
        from clrt.plan.trace_plan import pinned_template  # imports planning

        template = pinned_template(graph, bindings, plan)
        if template is None:
            return []
        template.price(self.planner.caps.max_alloc_bytes)
        return [template]

    def learn_ahead(self) -> None:
        """Makes the templates that runs will probably need."""
        for key, graph, device_io, first in self._families():
            if first is not None and not self.planner.templates.is_full(key):
                self._learn(key, graph, device_io, *first, float("inf"))

    def _families(
        self, graph: Graph | None = None
    ) -> list[tuple[Hashable, Graph, DeviceIo, tuple[Bindings, Plan] | None]]:
        """Returns the template families: one for each graph and `DeviceIo` that was planned.

        Leaves out families whose plans depend on elements of inputs.

        Args:
            graph: Graph whose families are returned; None for all graphs.

        Returns:
            Key of the family's templates, its graph and `DeviceIo`, and (symbol sizes, plan) of its
            first plan. The last is None if stored templates have served all runs so far.
        """
        found = []
        for key, first in self.planner.templates.families():
            of, data, device_io = cast("tuple[Graph, tuple[Any, ...], DeviceIo]", key)
            if not data and (graph is None or of is graph):
                found.append((key, of, device_io, first))
        return found

    def _learn(
        self,
        key: Hashable,
        graph: Graph,
        device_io: DeviceIo,
        bindings: Bindings,
        plan: Plan,
        end_s: float,
    ) -> None:
        """Makes templates for a plan's shapes and for likely ones, if no template holds there.

        Args:
            key: Key of the templates.
            graph: Graph to plan.
            device_io: Inputs and outputs on the device.
            bindings: Sizes of the symbols in the plan.
            plan: A plan of the graph.
            end_s: `time.monotonic` time after which only the first `_NUM_FIRST` shapes are tried.
        """
        planner, templates = self.planner, self.planner.templates
        for number, shapes in enumerate(likely_shapes(graph, bindings, _shapes_of(plan))):
            yield_point()
            is_guess = number > 0
            is_over = number >= _NUM_FIRST and time.monotonic() > end_s
            if is_over or (is_guess and templates.is_full(key)):
                return
            try:
                sizes = bindings_of(graph, shapes, NOTHING)
                if not templates.holds(key, sizes):
                    make = partial(planner.first_plan, graph, shapes, device_io)
                    trace = partial(planner.trace, graph, shapes, NOTHING, device_io)
                    templates.learn(key, sizes, make, trace, is_guess)
                self._price(key)
                if not is_guess:
                    BACKGROUND.collect()
            except ClrtError:
                if not is_guess:
                    raise

    def _price(self, key: Hashable) -> None:
        """Computes the `costs` of a family's templates, which their first runs would else do."""
        for template in self.planner.templates.of(key):
            if isinstance(template, PlanTemplate):
                template.price(self.planner.caps.max_alloc_bytes)


def _shapes_of(plan: Plan) -> Shapes:
    return {v.name: v.dims for v in plan.graph.inputs}


def _learn(reference: ref[TemplateLearner]) -> None:
    """Makes templates of a model, if that still exists."""
    learner = reference()
    if learner is not None:
        learner.learn_ahead()

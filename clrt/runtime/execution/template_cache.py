"""Templates of a model's plans, kept: a new shape is evaluated where one was planned before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from clrt.ir.dims import Bindings
from clrt.plan.plan import Plan
from clrt.plan.plan_equivalence import plans_equivalent
from clrt.plan.template import InstantiatedPlan, PlanTemplate
from clrt.util.active_calls import RecencyDict

_LOG = logging.getLogger(__name__)
# Each is for sizes at which the same kernels run; one takes what a plan takes of the host's memory.
MOST_TEMPLATES = 8
# Graphs, and what is known of their inputs.
MOST_FAMILIES = 16


@dataclass
class _GraphTemplates:
    """The templates of one graph.

    Attributes:
        first: The plan that was made first, and its sizes.
        tries: How many templates were made, or could not be made.
        found: The one used last comes first.
    """

    first: tuple[Bindings, Plan]
    tries: int = 0
    found: list[PlanTemplate] = field(default_factory=list)


class Templates:
    """Gives plans from the second shape of a graph on; the first is planned as it is."""

    def __init__(self, max_slab_bytes: int) -> None:
        self._max_slab_bytes = max_slab_bytes
        self._families: RecencyDict[Hashable, _GraphTemplates] = RecencyDict()

    def plan(self, key: Hashable, bindings: Bindings) -> InstantiatedPlan | None:
        """A plan of a graph; None where it has to be planned.

        Args:
            bindings: A number for each symbol of the input shapes.
        """
        family = self._families.use(key)
        if family is None:
            return None
        for template in family.found:
            plan = template.at(bindings, self._max_slab_bytes)
            if plan is not None:
                family.found.remove(template)
                family.found.insert(0, template)
                return plan
        return None

    def begin(self, key: Hashable, bindings: Bindings, plan: Plan) -> None:
        """Takes note of the first plan of a graph, which its templates have to give."""
        if key in self._families:
            return
        self._families[key] = _GraphTemplates((bindings, plan))
        if len(self._families) > MOST_FAMILIES:
            self._families.pop_oldest()

    def learn(
        self,
        key: Hashable,
        bindings: Bindings,
        make: Callable[[], Plan],
        trace: Callable[[], PlanTemplate | None],
    ) -> Plan | None:
        """A plan of a graph by a template made for it; None where it has to be planned.

        A template must give a plan that was made without it: the first, or where other kernels run
        at its sizes, this one. Code that loses a trace makes one that does not, and the graph then
        has none.

        Args:
            make: Makes the plan without a template.
            trace: Makes a template of the plan.
        """
        family = self._families.get(key)
        if family is None or family.tries == MOST_TEMPLATES:
            return None
        family.tries += 1
        template = trace()
        if template is None:
            return None
        own = template.at(bindings, self._max_slab_bytes)
        sizes, plan = family.first
        sized = template.at(sizes, self._max_slab_bytes)
        if sized is None:
            sizes, plan, sized = bindings, make(), own
        if own is None or sized is None or not plans_equivalent(sized, plan):
            _LOG.debug("the template for %s is not what planning makes", sizes)
            family.tries = MOST_TEMPLATES
            family.found.clear()
            return None
        family.found.insert(0, template)
        return own

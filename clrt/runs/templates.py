"""Templates of a model's plans, kept: a new shape is evaluated where one was planned before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from clrt.ir.dims import Bindings
from clrt.plan.template import PlanTemplate, SizedPlan

# Each is for sizes at which the same kernels run; one takes what a plan takes of the host's memory.
MOST_TEMPLATES = 8
# Graphs, and what is known of their inputs.
MOST_FAMILIES = 16


@dataclass
class _Kept:
    """The templates of one graph.

    Attributes:
        tries: How many were made, or could not be made.
        found: The one used last comes first.
    """

    tries: int = 0
    found: list[PlanTemplate] = field(default_factory=list)


class Templates:
    """Gives plans from the second shape of a graph on; the first is planned as it is."""

    def __init__(self, max_slab_bytes: int) -> None:
        self._max_slab_bytes = max_slab_bytes
        self._families: OrderedDict[Hashable, _Kept] = OrderedDict()

    def seen(self, key: Hashable) -> None:
        """Notes that a graph was planned, in a way that a template can follow."""
        if key not in self._families:
            self._families[key] = _Kept()
            if len(self._families) > MOST_FAMILIES:
                self._families.popitem(last=False)

    def plan(
        self, key: Hashable, trace: Callable[[], PlanTemplate | None], bindings: Bindings
    ) -> SizedPlan | None:
        """A plan of a graph; None where it has to be planned.

        Args:
            trace: Makes a template of the plan for these sizes.
            bindings: A number for each symbol of the input shapes.
        """
        family = self._families.get(key)
        if family is None:
            return None
        self._families.move_to_end(key)
        for template in family.found:
            plan = template.at(bindings, self._max_slab_bytes)
            if plan is not None:
                family.found.remove(template)
                family.found.insert(0, template)
                return plan
        if family.tries == MOST_TEMPLATES:
            return None
        family.tries += 1
        made = trace()
        if made is None:
            return None
        family.found.insert(0, made)
        return made.at(bindings, self._max_slab_bytes)

"""Caches plan templates of a model, from which plans for new shapes are evaluated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from dataclasses import field

from clrt.ir.dims import Bindings
from clrt.plan.plan import Plan
from clrt.plan.plan_equivalence import plans_equivalent
from clrt.plan.stored_template import StoredTemplate
from clrt.plan.template import InstantiatedPlan, PlanTemplate
from clrt.util.active_calls import RecencyDict
from clrt.util.fast_dataclass import dataclass

_LOG = logging.getLogger(__name__)
# Maximum number of templates per graph, which bounds host memory: a template takes as much as a
# plan. Each serves all sizes at which the same kernels run.
_MAX_TEMPLATES = 8
# Maximum number of cached (graph, known input values) pairs that have templates.
_MAX_GRAPHS = 16


@dataclass
class _GraphTemplates:
    """The plan templates of one graph.

    Attributes:
        first: Sizes of the symbols in the input shapes of the graph's first plan, and that plan;
            None if stored templates served from the start.
        tries: Number of attempts so far to create a template; `_MAX_TEMPLATES` after a failure, so
            that no further attempt is made.
        templates: Templates, most recently used first.
        stored: Templates of an earlier process that were not used yet.
    """

    first: tuple[Bindings, Plan] | None
    tries: int = 0
    templates: list[PlanTemplate] = field(default_factory=list)
    stored: list[StoredTemplate] = field(default_factory=list)


class Templates:
    """Caches plan templates, from which plans for the second and later shapes of a graph come.

    The methods identify a graph by a hashable `key`, which includes its known input elements.
    """

    def __init__(self, max_slab_bytes: int) -> None:
        self._max_slab_bytes = max_slab_bytes
        self._families: RecencyDict[Hashable, _GraphTemplates] = RecencyDict()

    def plan(self, key: Hashable, bindings: Bindings) -> InstantiatedPlan | None:
        """Evaluates a plan of a graph from a cached template; None if no template fits the sizes.

        Args:
            key: Cache key of the graph.
            bindings: Size of each symbol in the input shapes.
        """
        family = self._families.use(key)
        if family is None:
            return None
        for template in family.templates:
            plan = template.instantiate(bindings, self._max_slab_bytes)
            if plan is not None:
                family.templates.remove(template)
                family.templates.insert(0, template)
                return plan
        for stored in tuple(family.stored):
            if stored.trace.evaluate(bindings) is not None:
                family.stored.remove(stored)
                family.templates.insert(0, stored.template)
                plan = stored.template.instantiate(bindings, self._max_slab_bytes)
                if plan is not None:
                    return plan
        return None

    def begin(self, key: Hashable, bindings: Bindings, plan: Plan) -> None:
        """Records the first plan of a graph, which its templates must reproduce.

        Does nothing if a plan of the graph is recorded already.

        Args:
            key: Cache key of the graph.
            bindings: Size of each symbol in the input shapes of the plan.
            plan: Plan made without a template.
        """
        if key in self._families:
            return
        self._families[key] = _GraphTemplates((bindings, plan))
        if len(self._families) > _MAX_GRAPHS:
            self._families.pop_oldest()

    def add(self, key: Hashable, templates: Iterable[StoredTemplate]) -> None:
        """Adds the stored templates of a graph.

        Args:
            key: Cache key of the graph.
        """
        self._families[key] = _GraphTemplates(None, stored=list(templates))

    def families(self) -> list[tuple[Hashable, tuple[Bindings, Plan] | None]]:
        """Returns the cache keys of all graphs, each with the graph's first plan and its sizes."""
        return [(key, family.first) for key, family in self._families.items()]

    def of(self, key: Hashable) -> list[PlanTemplate]:
        """Returns the templates of a graph, most recently used first.

        Args:
            key: Cache key of the graph.
        """
        return list(self._families[key].templates)

    def learn(
        self,
        key: Hashable,
        bindings: Bindings,
        make: Callable[[], Plan],
        trace: Callable[[], PlanTemplate | None],
    ) -> Plan | None:
        """Traces a new template for the sizes in `bindings`, and returns its plan for them.

        The template is checked against a plan made without it: the first plan of the graph, or the
        plan for `bindings` if the template does not fit the first plan's sizes. A template fails
        the check if planning code computed with plain ints in place of traced sizes; the graph
        then gets no more templates.

        Args:
            key: Cache key of the graph.
            bindings: Size of each symbol in the input shapes.
            make: Makes the plan for `bindings` without a template.
            trace: Traces planning for `bindings`; returns None if that is not possible.

        Returns:
            The plan; None if the graph must be planned without a template, because it has no first
            plan or no attempts left, cannot be traced, or the check failed.
        """
        family = self._families.get(key)
        if family is None or family.tries == _MAX_TEMPLATES:
            return None
        family.tries += 1
        template = trace()
        if template is None:
            return None
        result = template.instantiate(bindings, self._max_slab_bytes)
        sizes, expected = family.first or (bindings, None)
        actual = template.instantiate(sizes, self._max_slab_bytes)
        if actual is None or expected is None:
            sizes, expected, actual = bindings, make(), result
        if result is None or actual is None or not plans_equivalent(actual, expected):
            _LOG.debug("the template for %s is not what planning makes", sizes)
            family.tries = _MAX_TEMPLATES
            family.templates.clear()
            return None
        family.templates.insert(0, template)
        return result

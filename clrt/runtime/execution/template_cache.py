"""Caches plan templates of a model, from which plans for new shapes are evaluated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
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
_MAX_TEMPLATES = 16
# Limits to the templates of a graph that are made before a run needs them: number of attempts that
# are left for sizes of runs; maximum number of launches, of the first plan and all templates
# together; and maximum number of guessed sizes at which planning could not be traced.
_MIN_LATER_TEMPLATES = 4
_MAX_LAUNCHES = 4096
_MAX_FAILURES = 3
# Maximum number of cached (graph, known input values) pairs that have templates.
_MAX_GRAPHS = 16


@dataclass
class _GraphTemplates:
    """The plan templates of one graph.

    Attributes:
        first: Sizes of the symbols in the input shapes of the graph's first plan, and that plan;
            None if stored templates have served so far.
        tries: Number of attempts so far to create a template; `_MAX_TEMPLATES` after a template has
            failed the check of `Templates.learn`, so that no further attempt is made.
        failures: Number of guessed sizes at which planning could not be traced.
        templates: Templates, most recently used first. The list is replaced, never changed: another
            thread may read it.
    """

    first: tuple[Bindings, Plan] | None
    tries: int = 0
    failures: int = 0
    templates: Sequence[PlanTemplate | StoredTemplate] = field(default_factory=list)


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
                others = [t for t in family.templates if t is not template]
                family.templates = [template, *others]
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
        self._families[key] = _GraphTemplates(None, templates=list(templates))

    def families(self) -> list[tuple[Hashable, tuple[Bindings, Plan] | None]]:
        """Returns the cache keys of all graphs, each with the graph's first plan and its sizes."""
        return [(key, family.first) for key, family in tuple(self._families.items())]

    def of(self, key: Hashable) -> list[PlanTemplate | StoredTemplate]:
        """Returns the templates of a graph, most recently used first.

        Args:
            key: Cache key of the graph.
        """
        family = self._families.get(key)
        return [] if family is None else list(family.templates)

    def holds(self, key: Hashable, bindings: Bindings) -> bool:
        """Returns whether a template of a graph holds at given sizes.

        Args:
            key: Cache key of the graph.
            bindings: Size of each symbol in the input shapes.
        """
        return any(template.holds(bindings) for template in self.of(key))

    def is_full(self, key: Hashable) -> bool:
        """Returns whether a graph has enough templates, so that none should be made ahead of runs.

        True also if guessed sizes have failed too often, or the graph is in the cache no more.

        Args:
            key: Cache key of the graph.
        """
        family = self._families.get(key)
        if (
            family is None
            or family.tries >= _MAX_TEMPLATES - _MIN_LATER_TEMPLATES
            or family.failures > _MAX_FAILURES
        ):
            return True
        launches = 0 if family.first is None else family.first[1].launches
        known = sum(len(t.launches) for t in family.templates if isinstance(t, PlanTemplate))
        return launches + known > _MAX_LAUNCHES

    def learn(
        self,
        key: Hashable,
        bindings: Bindings,
        make: Callable[[], Plan],
        trace: Callable[[], PlanTemplate | None],
        is_guess: bool = False,
    ) -> Plan | None:
        """Traces a new template for the sizes in `bindings`, and returns its plan for them.

        The template is checked against a plan made without it: the first plan of the graph. If
        there is none, or the template does not fit its sizes, the plan is made for `bindings`. A
        template fails the check if planning code computed with plain ints in place of traced sizes.
        The graph then loses all its templates and gets no more.

        Args:
            key: Cache key of the graph.
            bindings: Size of each symbol in the input shapes.
            make: Makes the plan for `bindings` without a template.
            trace: Traces planning for `bindings`; returns None if that is not possible.
            is_guess: Whether no run has asked for the sizes, which may be invalid for the graph.

        Returns:
            The plan; None if the graph must be planned without a template, because `key` is not in
            the cache or has no attempts left, planning cannot be traced, or the check failed.
        """
        family = self._families.get(key)
        if family is None or family.tries == _MAX_TEMPLATES:
            return None
        template = trace()
        family.tries += template is not None or not is_guess
        if template is None:
            family.failures += is_guess
            return None
        result = template.instantiate(bindings, self._max_slab_bytes)
        sizes, expected = family.first or (bindings, None)
        actual = template.instantiate(sizes, self._max_slab_bytes)
        if actual is None or expected is None:
            sizes, expected, actual = bindings, make(), result
        if result is None or actual is None or not plans_equivalent(actual, expected):
            _LOG.debug("the template for %s is not what planning makes", sizes)
            family.tries = _MAX_TEMPLATES
            family.templates = []
            return None
        if sizes == bindings:
            template.costs = actual.costs  # the comparison has built the steps of `actual`
        family.templates = [*family.templates, template]
        family.first = family.first or (sizes, expected)
        return result

"""`Planner`: creates and caches the plans of a model, one for each set of input shapes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, ValuesView
from contextlib import suppress
from dataclasses import field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from clrt.device.caps import DeviceCaps
from clrt.errors import (
    ClrtError,
    HostFallbackWarning,
    InputError,
    OutOfMemoryError,
    UnsupportedError,
    warn_user,
)
from clrt.ir.graph import Graph, Value, all_graphs
from clrt.ir.op import Array
from clrt.plan import memory as sizes
from clrt.plan.device_io import HOST_ONLY, DeviceIo
from clrt.plan.graph_break import GraphBreak
from clrt.plan.memory import Memory, Shapes
from clrt.plan.plan import Plan
from clrt.plan.stored_template import StoredTemplate
from clrt.plan.template import PlanTemplate
from clrt.runtime.executables.stored_graph import StoredGraph
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.plan_arguments import NOTHING, Tunables, bindings_of
from clrt.runtime.execution.signature import bind_dims
from clrt.runtime.execution.template_cache import Templates
from clrt.runtime.execution.template_learner import TemplateLearner
from clrt.runtime.opencl.arena_memory import ArenaMemory
from clrt.util.active_calls import RecencyDict
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.runtime.execution.plan_maker import PlanMaker

_LOG = logging.getLogger(__name__)
# Number of cached plans that are never evicted. Up to MAX_PLANS are kept while they take at most
# MAX_PLAN_BYTES of host memory: a loop with a growing state has a plan for each iteration.
MIN_CACHED_PLANS = 64
MAX_PLAN_BYTES = 64 << 20
MAX_PLANS = 4096
# Number of runs with the same shapes before loops become part of the plan: planning the loops costs
# about as much time as that many later runs save.
_FEW_RUNS = 12
# Estimated host memory of a plan without steps, in bytes.
_PLAN_BYTES = 8 << 10


@dataclass(eq=False)
class PlannedSegment:
    """A plan up to a graph break, or to the end of the graph.

    Attributes:
        graph_break: Graph break after the plan; None at the end of the graph.
        bound: Bound plan by arena, for arenas that the plan has been bound to.
        own_bytes: Device memory of the bound plans besides weights and arenas, when last counted.
        kept: Whether the segment is in the cache.
        runs: Number of runs left until the segment is planned again, with the loops at its graph
            break included in the plan; 0 if it will not be.
    """

    plan: Plan
    graph_break: GraphBreak | None
    bound: dict[ArenaMemory, BoundPlan] = field(default_factory=dict)
    own_bytes: int = 0
    kept: bool = True
    runs: int = 0

    def __post_init__(self) -> None:
        graph_break = self.graph_break
        loops = graph_break is not None and any(n.op.graphs for n in graph_break.host_driven)
        self.runs = _FEW_RUNS if loops else 0

    def is_due(self) -> bool:
        """Counts a run; returns whether to plan the segment again now, including its loops."""
        self.runs -= self.runs > 0
        return self.runs == 1

    @property
    def host_bytes(self) -> int:
        """Approximate host memory of the segment in bytes."""
        return _PLAN_BYTES + self.plan.host_bytes


class PlanCache:
    """Least-recently-used cache of planned segments, bounded by their number and memory.

    Attributes:
        latest: Arguments of the last lookup, which most runs repeat, and the segment found; None
            before the first.
        host_bytes: Approximate host memory of the segments.
        own_bytes: Device memory of the segments besides weights and arenas: the plans' own
            constants and status words.
    """

    def __init__(self) -> None:
        self._stages: RecencyDict[Any, PlannedSegment] = RecencyDict()
        self.latest: tuple[tuple[Graph, DeviceIo, Shapes], PlannedSegment] | None = None
        self.host_bytes = self.own_bytes = 0

    def __len__(self) -> int:
        return len(self._stages)

    @property
    def kept_bytes(self) -> int:
        """Total size of the segments in bytes, to compare with `MAX_PLAN_BYTES`.

        `own_bytes` counts twice, since the host has a copy of these constants.
        """
        return self.host_bytes + 2 * self.own_bytes

    def values(self) -> ValuesView[PlannedSegment]:
        """Returns the cached segments, least recently used first."""
        return self._stages.values()

    def get(self, key: Any) -> PlannedSegment | None:
        """Returns the segment cached under a key and marks it as most recently used; else None."""
        return self._stages.use(key)

    def add(self, key: Any, stage: PlannedSegment) -> None:
        """Adds a segment under a key; if the cache is full, evicts least recently used segments."""
        self._stages[key] = stage
        self.host_bytes += stage.host_bytes
        self.recount(stage)

    def drop(self, key: Any) -> None:
        """Removes the segment cached under a key, which must be present."""
        self._drop(self._stages.pop(key))

    def _drop(self, stage: PlannedSegment) -> None:
        """Subtracts an evicted segment from the memory totals."""
        stage.kept = False
        self.host_bytes -= stage.host_bytes
        self.own_bytes -= stage.own_bytes

    def recount(self, stage: PlannedSegment) -> None:
        """Updates `own_bytes` after a segment's first run, which allocates its constants.

        Evicts the least recently used segments if the cache is full.
        """
        if stage.kept:
            own_bytes = sum(bound.own_bytes for bound in stage.bound.values())
            self.own_bytes += own_bytes - stage.own_bytes
            stage.own_bytes = own_bytes
        while len(self) > MIN_CACHED_PLANS and (
            len(self) > MAX_PLANS or self.kept_bytes > MAX_PLAN_BYTES
        ):
            self._drop(self._stages.pop_oldest())

    def clear(self) -> None:
        """Removes all segments from the cache."""
        for stage in self._stages.values():
            stage.kept = False
        self._stages.clear()
        self.latest = None
        self.host_bytes = self.own_bytes = 0


class Planner:
    """Creates and caches plans of a model's graph and of its subgraphs.

    Attributes:
        graph: Graph of the model.
        kept: Cache of planned segments.
        rewrite: Applies the model's passes to a graph in place.
        notes: Data that host-driven ops cache about the graphs that they run.
        host_nodes: Reason why a node runs on the host, by name of the node; without entries for
            nodes that run on the device.
        constants: Constants of the model's graph and subgraphs, whose buffers plans share.
        limit: Maximum bytes that the model may allocate on the device.
        caps: Capabilities of the device.
        templates: Plan templates of the graphs.
        learner: Makes templates before runs need them.
    """

    def __init__(
        self,
        graph: Graph,
        caps: DeviceCaps,
        strict: bool,
        limit: int,
        rewrite: Callable[[Graph], object] = lambda graph: None,
    ) -> None:
        self.kept = PlanCache()
        self.rewrite = rewrite
        self.notes = WeakKeyDictionary[Graph, dict[Hashable, Any]]()
        self.host_nodes: dict[str, str] = {}
        self.constants: frozenset[Value] = frozenset()
        if not isinstance(graph, StoredGraph):  # whose constants `Runner.play` adds
            self.adopt(graph)
        self.limit = limit
        self.graph = graph
        self.caps = caps
        self._strict = strict
        self.templates = Templates(caps.max_alloc_bytes)
        self.learner = TemplateLearner(self)
        self._stored: dict[Hashable, list[StoredTemplate]] = {}

    def stage(
        self,
        graph: Graph,
        shapes: Shapes,
        known: Mapping[str, Array] = NOTHING,
        contract: DeviceIo = HOST_ONLY,
    ) -> PlannedSegment:
        """Returns the first segment of a graph from the cache, or plans it.

        Args:
            shapes: Shape of each input of the graph that is not in `known`, by name.
            known: Elements of the inputs that planning needs, by name.
            contract: Which inputs and outputs are tensors on the device.

        Raises:
            ClrtError: The graph cannot be planned, or the planner is strict and a node would run
                on the host.
        """
        data = tuple((n, a.shape, a.tobytes()) for n, a in known.items())
        key = (graph, tuple(shapes.get(v.name) for v in graph.inputs), data, contract)
        stage = self.kept.get(key)
        if stage is None:
            try:
                stage = self._stage((graph, data, contract), graph, shapes, known, contract)
            except OutOfMemoryError as error:
                raise sizes.with_batch(error, self.fitting_batch_for(shapes)) from error
            self._announce(stage.plan)
            self.kept.add(key, stage)
        elif stage.runs and stage.is_due():
            with_loops = self._plan_loops(stage, graph, shapes, known, contract)
            if with_loops is not None:
                self.kept.drop(key)
                self.kept.add(key, with_loops)
                stage = with_loops
        self.kept.latest = None if known else ((graph, contract, shapes), stage)
        return stage

    def latest(self, graph: Graph, shapes: Shapes, contract: DeviceIo) -> PlannedSegment | None:
        """Returns the segment that `stage` returned last, if it was called with equal arguments.

        Else None, also if the segment will be planned again with its loops. Unlike `stage`, it
        needs no lock.
        """
        latest = self.kept.latest  # read once, because another thread may replace it
        if latest is None or latest[0] != (graph, contract, shapes) or latest[1].runs:
            return None
        return latest[1]

    def _stage(
        self,
        family: Hashable,
        graph: Graph,
        shapes: Shapes,
        known: Mapping[str, Array],
        contract: DeviceIo,
    ) -> PlannedSegment:
        """Creates the first segment of a graph: from a template if possible, else by planning.

        Args:
            family: Key of the graph's templates: graph, known elements and contract.
            shapes: Shape of each input of the graph that is not in `known`, by name.
            known: Elements of the inputs that planning needs, by name.
            contract: Which inputs and outputs are tensors on the device.
        """
        bindings = bindings_of(graph, shapes, known)
        trace = partial(self.trace, graph, shapes, known, contract)
        plain = partial(self.plan, graph, shapes, known, contract)
        plan: Plan | None = self.templates.plan(family, bindings)
        if plan is None:
            plan = self.templates.learn(family, bindings, lambda: plain()[0], trace)
            self.learner.is_due |= plan is not None
        if plan is not None:
            return PlannedSegment(plan, None)
        stage = PlannedSegment(*plain())
        if stage.graph_break is None and not stage.plan.host_steps and not self.caps.simulator:
            self.templates.begin(family, bindings, stage.plan)
            self.learner.is_due = True
        return stage

    def _plan_loops(
        self,
        stage: PlannedSegment,
        graph: Graph,
        shapes: Shapes,
        known: Mapping[str, Array],
        contract: DeviceIo,
    ) -> PlannedSegment | None:
        """Plans a segment again, with the loops at its graph break in the plan.

        None if no loop can be planned, or if the plan exceeds the memory limit or has host steps.

        Args:
            stage: Segment as planned without its loops.
            graph: Graph that the segment begins.
            shapes: Shape of each input of the graph that is not in `known`, by name.
            known: Elements of the inputs that planning needs, by name.
            contract: Which inputs and outputs are tensors on the device.
        """
        assert stage.graph_break is not None
        stage.runs = 0
        try:
            plan, graph_break = self.plan(graph, shapes, known, contract, repeated=True)
        except ClrtError:  # runs keep using the plan without loops
            _LOG.debug("no plan for many runs of %s", graph.name, exc_info=True)
            return None
        loops = {n.name for n in stage.graph_break.host_driven}
        remaining = set() if graph_break is None else {n.name for n in graph_break.host_driven}
        fits = self.memory(plan, graph_break).device_bytes <= self.limit
        if not fits or loops <= remaining or plan.host_steps:
            return None
        with_loops = PlannedSegment(plan, graph_break)
        with_loops.runs = 0
        return with_loops

    def plan(
        self,
        graph: Graph,
        shapes: Shapes,
        known: Mapping[str, Array] = NOTHING,
        contract: DeviceIo = HOST_ONLY,
        tunables: Tunables = NOTHING,
        repeated: bool = False,
    ) -> tuple[Plan, GraphBreak | None]:
        """Plans the first segment of a graph, without caching it.

        Args:
            shapes: Shape of each input of the graph that is not in `known`, by name.
            known: Elements of the inputs that planning needs, by name.
            contract: Which inputs and outputs are tensors on the device.
            tunables: `T_` macros by kernel entry point, in place of the tuning records.
            repeated: Whether the plan serves many runs. If so, Loop and Scan nodes may be unrolled
                to more nodes, which takes longer to plan.

        Returns:
            The plan, and the graph break after it, which is None at the end of the graph.
        """
        return self._maker.plan(graph, shapes, known, contract, tunables, repeated)

    def trace(
        self, graph: Graph, shapes: Shapes, known: Mapping[str, Array], contract: DeviceIo
    ) -> PlanTemplate | None:
        """Plans a graph with traced sizes, as `clrt.plan.trace_plan` does.

        Args:
            shapes: Shape of each input of the graph that is not in `known`, by name.
            known: Elements of the inputs that planning needs, by name.
            contract: Which inputs and outputs are tensors on the device.
        """
        return self._maker.trace(graph, shapes, known, contract)

    @cached_property
    def _maker(self) -> PlanMaker:
        # Imported late: plans of stored templates need neither ops nor planning.
        from clrt.runtime.execution.plan_maker import PlanMaker

        return PlanMaker(self.caps)

    def adopt(self, graph: Graph) -> None:
        """Adds a graph's constants to `constants`, so that all plans share their buffers.

        Args:
            graph: Graph of the model, or one derived from it.
        """
        self.constants |= {v for g in all_graphs(graph) for v in g.constants()}

    def add_stored(self, graph: Graph, templates: Iterable[StoredTemplate]) -> None:
        """Adds templates of an earlier process.

        Args:
            graph: Graph that the templates plan.
        """
        for template in templates:
            self._stored.setdefault((graph, (), template.device_io), []).append(template)
        self._add_stored()

    def _add_stored(self) -> None:
        for key, templates in self._stored.items():
            self.templates.add(key, templates)

    def drop_stored(self) -> None:
        """Forgets all plans, and the templates of an earlier process."""
        self._stored.clear()
        self.forget()

    def first_plan(self, graph: Graph, shapes: Shapes, contract: DeviceIo) -> Plan:
        """Plans the first segment of a graph, without caching it; arguments are those of `plan`."""
        return self.plan(graph, shapes, NOTHING, contract)[0]

    def forget(self) -> None:
        """Drops all cached plans, and all templates but the stored ones."""
        self.kept.clear()
        self.templates = Templates(self.caps.max_alloc_bytes)
        self._add_stored()

    def memory(self, plan: Plan, graph_break: GraphBreak | None) -> Memory:
        """Returns the memory that a plan needs, whether or not it is allocated.

        Args:
            graph_break: Graph break after the plan; None at the end of the graph.
        """
        return sizes.memory_of(plan, graph_break, self.constants)

    def at_batch(self, shapes: Shapes) -> Callable[[int], Shapes]:
        """Returns a function from a batch size to the model's input shapes at that batch size.

        Args:
            shapes: Shape of each input of the model by name, at any batch size.

        Raises:
            InputError: Axis 0 of the inputs is fixed.
        """
        inputs = self.graph.inputs
        return sizes.batch_resizer(inputs, bind_dims(inputs, shapes), shapes)

    def fitting_batch(self, shapes: Shapes, limit: int) -> int:
        """Returns the largest batch size whose run needs at most `limit` device bytes; 0 if none.

        Args:
            shapes: Shape of each input of the model by name, at any batch size.
            limit: Maximum device memory of a run, in bytes.

        Raises:
            InputError: Axis 0 of the inputs is fixed.
        """
        resized = self.at_batch(shapes)

        def needed(batch: int) -> int:
            return self.memory(*self.plan(self.graph, resized(batch))).device_bytes

        return sizes.largest_batch(needed, limit)

    def fitting_batch_for(self, shapes: Shapes, limit: int | None = None) -> int | None:
        """Returns the largest batch size that fits into device memory; 0 if none fits.

        None if `shapes` does not name the model's inputs, or if their axis 0 is fixed.

        Args:
            shapes: Shape of each input by name, at any batch size.
            limit: Maximum device memory in bytes; None for the model's limit.
        """
        if shapes.keys() == {v.name for v in self.graph.inputs}:
            with suppress(InputError):
                return self.fitting_batch(shapes, self.limit if limit is None else limit)
        return None

    def _announce(self, plan: Plan) -> None:
        """Warns, once per node, of nodes of a plan that run on the host.

        Raises:
            UnsupportedError: Nodes run on the host, and the planner is strict.
        """
        new = [s for s in plan.host_steps if s.node.name not in self.host_nodes]
        if not new:
            return
        listing = "; ".join(f"{s.node} ({s.reason})" for s in new)
        if self._strict:
            raise UnsupportedError(
                f"No kernel on {self.caps.name} for: {listing}. Load with strict=False to run "
                "these nodes on the host.",
                [repr(s.node) for s in new],
            )
        self.host_nodes.update({s.node.name: s.reason for s in new})
        warn_user(
            f"On the host, not on {self.caps.name}, run: {listing}. "
            "Load with strict=True to make this an error.",
            HostFallbackWarning,
        )

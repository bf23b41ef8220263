"""The plans of a model: made for a set of shapes, and kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, ValuesView
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any
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
from clrt.ir.graph import Graph, Value
from clrt.ir.op import Array
from clrt.kernels.tuning_records import record_for
from clrt.ops.base import all_graphs
from clrt.plan import memory as sizes
from clrt.plan.device_io import HOST_ONLY, DeviceIo
from clrt.plan.memory import Memory, Shapes
from clrt.plan.plan import Plan, make_plan
from clrt.plan.specialise import GraphBreak, specialise_to_break
from clrt.plan.template import trace_plan
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.signature import bind_dims
from clrt.runtime.execution.template_cache import Templates
from clrt.runtime.opencl.arena_memory import ArenaMemory
from clrt.util.active_calls import RecencyDict

_LOG = logging.getLogger(__name__)
# So many plans are kept, and more as long as they are small: a growing state has one an iteration.
KEPT_PLANS = 64
KEPT_PLAN_BYTES = 64 << 20
MOST_PLANS = 4096
# With the same shapes, before loops become part of their plan, which takes what so many then save.
_FEW_RUNS = 12
# What a plan without steps takes of the host's memory.
_PLAN_BYTES = 8 << 10

# `T_` macros by kernel.
Tunables = Mapping[str, Mapping[str, int]]
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(eq=False)
class PlannedSegment:
    """A plan, and where the graph goes on after it.

    Attributes:
        bound: The plan bound to arenas.
        own_bytes: Of its plan's own device memory, as it was counted last.
        kept: Whether it is among the plans that are kept.
        runs: How many runs may still begin with it before it is planned anew for many; none where
            that helps nothing.
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
        """Whether it is to be planned anew for the run that begins with it."""
        self.runs -= self.runs > 0
        return self.runs == 1

    @property
    def host_bytes(self) -> int:
        """The host's memory that it takes as long as it is kept, roughly."""
        return _PLAN_BYTES + self.plan.host_bytes


class PlanCache:
    """Stages by key, the least recently used first, and what they take together.

    Attributes:
        host_bytes: Of the host's memory, roughly.
        own_bytes: Of the device's, besides what plans share.
        latest: The stage used last, and what was asked for: mostly that is asked for again.
    """

    def __init__(self) -> None:
        self._stages: RecencyDict[Any, PlannedSegment] = RecencyDict()
        self.latest: tuple[tuple[Graph, DeviceIo, Shapes], PlannedSegment] | None = None
        self.host_bytes = self.own_bytes = 0

    def __len__(self) -> int:
        return len(self._stages)

    @property
    def kept_bytes(self) -> int:
        """All of it; what a plan has on the device its graph has on the host, too."""
        return self.host_bytes + 2 * self.own_bytes

    def values(self) -> ValuesView[PlannedSegment]:
        """The stages."""
        return self._stages.values()

    def get(self, key: Any) -> PlannedSegment | None:
        """The stage of a key, which is now the one used last."""
        return self._stages.use(key)

    def add(self, key: Any, stage: PlannedSegment) -> None:
        """Keeps a stage."""
        self._stages[key] = stage
        self.host_bytes += stage.host_bytes
        self.recount(stage)

    def drop(self, key: Any) -> None:
        """Keeps a stage no longer."""
        self._drop(self._stages.pop(key))

    def _drop(self, stage: PlannedSegment) -> None:
        stage.kept = False
        self.host_bytes -= stage.host_bytes
        self.own_bytes -= stage.own_bytes

    def recount(self, stage: PlannedSegment) -> None:
        """Asks a stage anew what it has of the device: its first run makes what it lacks.

        Of many stages that take much, those go that were used longest ago.
        """
        if stage.kept:
            own = sum(bound.own_bytes for bound in stage.bound.values())
            self.own_bytes += own - stage.own_bytes
            stage.own_bytes = own
        while len(self) > KEPT_PLANS and (
            len(self) > MOST_PLANS or self.kept_bytes > KEPT_PLAN_BYTES
        ):
            self._drop(self._stages.pop_oldest())

    def clear(self) -> None:
        """Keeps none."""
        for stage in self._stages.values():
            stage.kept = False
        self._stages.clear()
        self.latest = None
        self.host_bytes = self.own_bytes = 0


class Planner:
    """Makes the plans of a graph, and of those its nodes hold.

    Attributes:
        kept: The plans made so far.
        host_nodes: The nodes that computed on the host so far, by name, and why.
        constants: Of the graph and those its nodes hold; plans share them.
        limit: Bytes that the model may allocate on the device.
        rewrite: Optimises a graph in place, as that of the model was.
        notes: What ops that the host drives have noted of the graphs that they run.
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
        self.adopt(graph)
        self.limit = limit
        self._graph = graph
        self._caps = caps
        self._strict = strict
        self._templates = Templates(caps.max_alloc_bytes)

    def stage(
        self,
        graph: Graph,
        shapes: Shapes,
        known: Mapping[str, Array] = NOTHING,
        contract: DeviceIo = HOST_ONLY,
    ) -> PlannedSegment:
        """A graph's first stage, kept.

        Args:
            shapes: Of the graph's inputs.
            known: The elements of those that planning has to know.
            contract: Which of its inputs and outputs are tensors on the device.

        Raises:
            ClrtError: It cannot be planned, or not as `strict` asks.
        """
        asked = (graph, contract, shapes)
        latest = self.kept.latest  # once: another thread may set it
        if not known and latest is not None and latest[0] == asked and not latest[1].runs:
            return latest[1]
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
            again = self._for_many(stage, graph, shapes, known, contract)
            if again is not None:
                self.kept.drop(key)
                self.kept.add(key, again)
                stage = again
        self.kept.latest = None if known else (asked, stage)
        return stage

    def _stage(
        self,
        family: Hashable,
        graph: Graph,
        shapes: Shapes,
        known: Mapping[str, Array],
        contract: DeviceIo,
    ) -> PlannedSegment:
        """A stage by a template, where there is one; else planned.

        Args:
            family: What plans of a template have in common.
        """
        bindings, make = _bindings(graph, shapes, known), partial(self._make, contract)
        trace = partial(trace_plan, graph, bindings, shapes, known, make, contract.donated)
        plain = partial(self.plan, graph, shapes, known, contract)
        plan: Plan | None = self._templates.plan(family, bindings)
        if plan is None:
            plan = self._templates.learn(family, bindings, lambda: plain()[0], trace)
        if plan is not None:
            return PlannedSegment(plan, None)
        stage = PlannedSegment(*plain())
        if stage.graph_break is None and not stage.plan.host_steps and not self._caps.simulator:
            self._templates.begin(family, bindings, stage.plan)
        return stage

    def _for_many(
        self,
        stage: PlannedSegment,
        graph: Graph,
        shapes: Shapes,
        known: Mapping[str, Array],
        contract: DeviceIo,
    ) -> PlannedSegment | None:
        """The stage with loops as part of its plan; None where that cannot be, or has no room."""
        assert stage.graph_break is not None
        stage.runs = 0
        try:
            plan, graph_break = self.plan(graph, shapes, known, contract, repeated=True)
        except ClrtError:  # runs go on as they did
            _LOG.debug("no plan for many runs of %s", graph.name, exc_info=True)
            return None
        loops = {n.name for n in stage.graph_break.host_driven}
        left = set() if graph_break is None else {n.name for n in graph_break.host_driven}
        fits = self.memory(plan, graph_break).device_bytes <= self.limit
        if not fits or loops <= left or plan.host_steps:
            return None
        again = PlannedSegment(plan, graph_break)
        again.runs = 0
        return again

    def plan(
        self,
        graph: Graph,
        shapes: Shapes,
        known: Mapping[str, Array] = NOTHING,
        contract: DeviceIo = HOST_ONLY,
        tunables: Tunables = NOTHING,
        repeated: bool = False,
    ) -> tuple[Plan, GraphBreak | None]:
        """A plan that is not kept, and where the graph goes on.

        Args:
            tunables: The `T_` macros of kernels by entry point, in place of the tuning records.
            repeated: Whether it is for many runs.
        """
        bindings, donated = _bindings(graph, shapes, known), contract.donated
        found = specialise_to_break(graph, bindings, shapes, known, donated, repeated)
        first, graph_break = found
        if graph_break is not None:  # what comes after may still read what is donated
            later = {v.name for v in graph_break.suffix.inputs} | set(graph_break.reads)
            left = frozenset(first.output_names).difference(graph_break.reads)
            contract = replace(contract, donated=donated - later, device_outputs=left)

        return self._make(contract, first, tunables), graph_break

    def _make(self, contract: DeviceIo, graph: Graph, tunables: Tunables = NOTHING) -> Plan:
        """The plan of a specialised graph."""

        @cache
        def record(kernel: str) -> Mapping[str, int]:
            return tunables[kernel] if kernel in tunables else record_for(kernel, self._caps)

        return make_plan(graph, self._caps, record, contract)

    def adopt(self, graph: Graph) -> None:
        """Counts the constants of the model's graph, or one made of it, among what plans share."""
        self.constants |= {v for g in all_graphs(graph) for v in g.constants()}

    def forget(self) -> None:
        """Keeps no plans, and nothing that they are made from."""
        self.kept.clear()
        self._templates = Templates(self._caps.max_alloc_bytes)

    def memory(self, plan: Plan, graph_break: GraphBreak | None) -> Memory:
        """The memory that a plan needs, whether or not it has it."""
        return sizes.memory_of(plan, graph_break, self.constants)

    def at_batch(self, shapes: Shapes) -> Callable[[int], Shapes]:
        """The input shapes of the model at another batch.

        Raises:
            InputError: Axis 0 of the inputs is fixed.
        """
        inputs = self._graph.inputs
        return sizes.at_batch(inputs, bind_dims(inputs, shapes), shapes)

    def fitting_batch(self, shapes: Shapes, limit: int) -> int:
        """The largest batch whose run takes at most `limit` bytes of the device; or 0."""
        resized = self.at_batch(shapes)

        def needed(batch: int) -> int:
            return self.memory(*self.plan(self._graph, resized(batch))).device_bytes

        return sizes.largest_batch(needed, limit)

    def fitting_batch_for(self, shapes: Shapes, limit: int | None = None) -> int | None:
        """`fitting_batch` where these are shapes of the whole model and it has a batch."""
        if shapes.keys() == {v.name for v in self._graph.inputs}:
            with suppress(InputError):
                return self.fitting_batch(shapes, self.limit if limit is None else limit)
        return None

    def _announce(self, plan: Plan) -> None:
        """Says once which nodes run on the host, or refuses to under strict."""
        new = [s for s in plan.host_steps if s.node.name not in self.host_nodes]
        if not new:
            return
        listing = "; ".join(f"{s.node} ({s.reason})" for s in new)
        if self._strict:
            raise UnsupportedError(
                f"No kernel on {self._caps.name} for: {listing}. Load with strict=False to run "
                "these nodes on the host.",
                [repr(s.node) for s in new],
            )
        self.host_nodes.update({s.node.name: s.reason for s in new})
        warn_user(
            f"On the host, not on {self._caps.name}, run: {listing}. "
            "Load with strict=True to make this an error.",
            HostFallbackWarning,
        )


def _bindings(graph: Graph, shapes: Shapes, known: Mapping[str, Array]) -> dict[str, int]:
    return bind_dims(graph.inputs, {**shapes, **{n: a.shape for n, a in known.items()}})

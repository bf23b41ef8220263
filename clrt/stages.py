"""How a graph runs on a device: stage after stage, and the host's part between them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, ValuesView
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

import numpy as np

from clrt.errors import (
    HostFallbackWarning,
    InputError,
    ModelError,
    NumberError,
    OutOfMemoryError,
    UnsupportedError,
    warn_user,
)
from clrt.inspection import memory as sizes
from clrt.inspection.memory import Memory
from clrt.inspection.units import format_bytes, format_shapes
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, ContainerType, TensorType
from clrt.limits import check_iterations
from clrt.ops.base import Held, Op, all_graphs
from clrt.ops.blaming import Blaming
from clrt.plan.origins import traced
from clrt.plan.plan import Plan, make_plan
from clrt.plan.specialise import GraphBreak, specialise_to_break
from clrt.runtime.executor import BoundPlan, Feed, Slabs, Weights
from clrt.runtime.pace import Stop
from clrt.runtime.profiler import Recorder
from clrt.runtime.session import DeviceTensor, Session
from clrt.signature import bind_dims
from clrt.tuning.records import record_for

# So many plans are kept, and more as long as they are small: a growing state has one a turn.
KEPT_PLANS = 64
KEPT_PLAN_BYTES = 64 << 20
MOST_PLANS = 4096
# What a step takes of the host's memory; measured: 3 to 11 KB, with its part of the graph.
_STEP_BYTES = 8 << 10
# The same of a plan without steps.
_PLAN_BYTES = 8 << 10

# `T_` macros by kernel.
Tunables = Mapping[str, Mapping[str, int]]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(eq=False)
class Stage:
    """A plan, and where the graph goes on after it.

    Attributes:
        own_bytes: Of its plan's own device memory, as it was counted last.
        kept: Whether it is among the plans that are kept.
    """

    bound: BoundPlan
    graph_break: GraphBreak | None
    own_bytes: int = 0
    kept: bool = True

    @property
    def host_bytes(self) -> int:
        """The host's memory that it takes as long as it is kept, roughly."""
        return _PLAN_BYTES + len(self.bound.plan.steps) * _STEP_BYTES


class KeptPlans:
    """Stages by key, the least recently used first, and what they take together.

    Attributes:
        host_bytes: Of the host's memory, roughly.
        own_bytes: Of the device's, besides what plans share.
    """

    def __init__(self) -> None:
        self._stages: OrderedDict[Any, Stage] = OrderedDict()
        self.host_bytes = self.own_bytes = 0

    def __len__(self) -> int:
        return len(self._stages)

    @property
    def kept_bytes(self) -> int:
        """All of it; what a plan has on the device its graph has on the host, too."""
        return self.host_bytes + 2 * self.own_bytes

    def values(self) -> ValuesView[Stage]:
        """The stages."""
        return self._stages.values()

    def get(self, key: Any) -> Stage | None:
        """The stage of a key, which is now the one used last."""
        stage = self._stages.get(key)
        if stage is not None:
            self._stages.move_to_end(key)
        return stage

    def add(self, key: Any, stage: Stage) -> None:
        """Keeps a stage."""
        self._stages[key] = stage
        self.host_bytes += stage.host_bytes
        self.recount(stage)

    def recount(self, stage: Stage) -> None:
        """Asks a stage anew what it has of the device: its first run makes what it lacks.

        Of many stages that take much, those go that were used longest ago.
        """
        if stage.kept:
            own = stage.bound.own_bytes
            self.own_bytes += own - stage.own_bytes
            stage.own_bytes = own
        while len(self) > KEPT_PLANS and (
            len(self) > MOST_PLANS or self.kept_bytes > KEPT_PLAN_BYTES
        ):
            _, oldest = self._stages.popitem(last=False)
            oldest.kept = False
            self.host_bytes -= oldest.host_bytes
            self.own_bytes -= oldest.own_bytes

    def clear(self) -> None:
        """Keeps none."""
        for stage in self._stages.values():
            stage.kept = False
        self._stages.clear()
        self.host_bytes = self.own_bytes = 0


class Stages:
    """The plans of a graph and of those its nodes hold; they share weights and an arena.

    Calls take turns: see `Model.run`.

    Attributes:
        own_limit: Bytes that may be allocated on the device; None for what there is.
        host_nodes: The nodes that computed on the host so far, by name, and why.
        plans: Those kept.
        recorder: What a run tells when its steps ran.
        stop: Ends the runs before their time.
    """

    def __init__(self, graph: Graph, session: Session, strict: bool, own_limit: int | None) -> None:
        self.own_limit = own_limit
        self.host_nodes: dict[str, str] = {}
        self.plans = KeptPlans()
        self.recorder: Recorder | None = None
        self.stop = Stop()
        self.weights = Weights(session)
        self._slabs = Slabs(session)
        self._graph = graph
        self._session = session
        self._strict = strict
        self._caps = session.device.caps
        self._turns = 0
        self._constants = frozenset(v for g in all_graphs(graph) for v in g.constants())

    @property
    def limit(self) -> int:
        """Bytes that the model may allocate on the device."""
        return self._caps.global_mem_bytes if self.own_limit is None else self.own_limit

    def release(self) -> None:
        """Frees the device memory; what is needed again is made again."""
        self.plans.clear()
        self.weights.clear()
        self._slabs.clear()
        self._session.trim()

    def close(self) -> None:
        """Frees the device memory, and the programs that no other model uses."""
        self.release()
        self.weights.programs.clear()

    def run(
        self, graph: Graph, feeds: dict[str, Held], outputs: Mapping[str, bool] | None = None
    ) -> dict[str, Held]:
        """The outputs of the graph, or of one that a node of it holds.

        Args:
            outputs: The wanted ones, and whether each stays on the device. By default all of them:
                what is computed stays there, and inputs and constants where they are.

        Raises:
            InputError: An index, a length or the like is out of range.
            OutOfMemoryError: There is no room for it; the model then holds no device memory.
            DeviceError: The driver fails.
            ClrtError: `stop` was requested.
        """
        if outputs is not None:
            self._turns = 0
        else:
            self._turns += 1
            check_iterations(self._turns, "The model")
        try:
            return self._run(graph, feeds, outputs)
        except NumberError as error:
            raise traced(error, self._graph) from error

    def _run(
        self, graph: Graph, feeds: dict[str, Held], outputs: Mapping[str, bool] | None
    ) -> dict[str, Held]:
        known = dict[str, Array]()
        while True:
            self.stop.check()
            shapes = {n: tuple(f.shape) for n, f in feeds.items() if hasattr(f, "shape")}
            stage = self.stage(graph, shapes, known)
            graph_break = stage.graph_break
            if graph_break is None:
                results = {
                    n: _value(v, feeds)
                    for n, v in zip(graph.output_names, graph.outputs, strict=True)
                    if v.type.on_host or (outputs is None and _is_there(v, feeds))
                }
                wanted = dict.fromkeys(graph.output_names, True) if outputs is None else outputs
                if made := {n: stays for n, stays in wanted.items() if n not in results}:
                    results.update(self._run_stage(stage, feeds, made))
                return {n: results[n] for n in graph.output_names if n in results}
            kept = {n: n not in graph_break.reads for n in stage.bound.plan.graph.output_names}
            feeds = {**feeds, **(self._run_stage(stage, feeds, kept) if kept else {})}
            feeds.update({n: _on_host(feeds[n]) for n in graph_break.reads})
            known = {n: feeds[n] for n in graph_break.known}
            for node in graph_break.host_driven:
                feeds.update(self._drive(node, feeds))
            graph = graph_break.suffix
            feeds = {v.name: feeds[v.name] for v in graph.inputs if v.name not in known}

    def stage(
        self, graph: Graph, shapes: sizes.Shapes, known: Mapping[str, Array] = _NOTHING
    ) -> Stage:
        """A graph's first stage, kept.

        Args:
            shapes: Of the graph's inputs.
            known: The elements of those that planning has to know.
        """
        data = tuple((n, a.shape, a.tobytes()) for n, a in known.items())
        key = (graph, tuple(shapes.get(v.name) for v in graph.inputs), data)
        stage = self.plans.get(key)
        if stage is None:
            try:
                plan, graph_break = self._plan(graph, shapes, known)
            except OutOfMemoryError as error:
                fitting = self._fitting_batch_for(shapes, self.limit)
                raise sizes.with_batch(error, fitting) from error
            stage = Stage(self._bound(plan, self.weights), graph_break)
            self._announce(plan)
            self.plans.add(key, stage)
        return stage

    def bind(self, shapes: sizes.Shapes, tunables: Tunables) -> BoundPlan:
        """A plan of its own for given input shapes.

        Args:
            tunables: The `T_` macros of kernels by entry point, in place of the tuning records.
        """
        plan, _ = self._plan(self._graph, shapes, tunables=tunables)
        # Others pack weights in other ways, which nobody reads once this plan is gone.
        return self._bound(plan, Weights(self._session) if tunables else self.weights)

    def plan(self, shapes: sizes.Shapes) -> tuple[Plan, GraphBreak | None]:
        """A plan, of which the device knows nothing yet."""
        return self._plan(self._graph, shapes)

    def memory(self, plan: Plan, graph_break: GraphBreak | None) -> Memory:
        """The memory that a plan needs, whether or not it has it."""
        return sizes.memory_of(plan, graph_break, self._constants)

    def at_batch(self, shapes: sizes.Shapes) -> Callable[[int], sizes.Shapes]:
        """The input shapes at another batch.

        Raises:
            InputError: Axis 0 of the inputs is fixed.
        """
        inputs = self._graph.inputs
        return sizes.at_batch(inputs, bind_dims(inputs, shapes), shapes)

    def fitting_batch(self, shapes: sizes.Shapes, limit: int) -> int:
        """The largest batch whose run takes at most `limit` bytes of the device; or 0."""
        resized = self.at_batch(shapes)

        def needed(batch: int) -> int:
            return self.memory(*self.plan(resized(batch))).device_bytes

        return sizes.largest_batch(needed, limit)

    def _run_stage(
        self, stage: Stage, feeds: Mapping[str, Held], outputs: Mapping[str, bool]
    ) -> dict[str, Feed]:
        """Runs a stage where there is room for it."""
        bound, was_ready = stage.bound, stage.bound.ready
        if not was_ready:
            self._make_room(stage)
        try:
            results = bound.run(feeds, outputs, self.recorder)
            if not was_ready:
                self.plans.recount(stage)
            return results
        except OutOfMemoryError:
            self.release()
        # Alone, without what other shapes and other models' results left behind.
        try:
            return bound.run(feeds, outputs, self.recorder)
        except OutOfMemoryError as error:
            self.release()
            raise self._no_room(stage, error) from error

    def _make_room(self, stage: Stage) -> None:
        """Frees what other shapes left where the limit asks for it.

        Raises:
            OutOfMemoryError: The stage alone is over the limit.
        """
        bound = stage.bound
        memory = self.memory(bound.plan, stage.graph_break)
        if memory.device_bytes > self.limit:
            raise self._no_room(stage)
        weights = {k: n for k, n in bound.plan.uploads.items() if k[0] in self._constants}
        weights.update(self.weights.sizes)
        slabs = zip_longest(self._slabs.sizes, bound.plan.arena.slab_bytes, fillvalue=0)
        others = self.plans.own_bytes - (stage.own_bytes if stage.kept else 0)
        grown = sum(weights.values()) + sum(map(max, slabs)) + others + memory.plan_bytes
        if grown > self.limit:
            self.release()

    def _no_room(self, stage: Stage, error: OutOfMemoryError | None = None) -> OutOfMemoryError:
        """The error for a stage over the limit, or for one that the driver gave no room."""
        plan, limit = stage.bound.plan, self.limit
        memory = self.memory(plan, stage.graph_break)
        shapes = {v.name: v.dims for v in plan.graph.inputs}
        if error is not None and memory.device_bytes <= limit:
            needed = memory.device_bytes
            return OutOfMemoryError(
                f"Running {format_shapes(shapes)} needs {format_bytes(needed)} on the device, "
                f"and failed with nothing of other shapes there, too: {error}",
                needed,
                error.available_bytes,
            )
        fitting = self._fitting_batch_for(shapes, limit)
        of = "the device has" if self.own_limit is None else "memory_limit allows"
        return sizes.out_of_memory(format_shapes(shapes), memory, limit, of, fitting)

    def _fitting_batch_for(self, shapes: sizes.Shapes, limit: int) -> int | None:
        """`fitting_batch` where these are shapes of the whole model and it has a batch."""
        if shapes.keys() == {v.name for v in self._graph.inputs}:
            with suppress(InputError):
                return self.fitting_batch(shapes, limit)
        return None

    def _drive(self, node: Node, feeds: Mapping[str, Held]) -> dict[str, Held]:
        """The outputs of a node that the host drives."""
        assert isinstance(node.op, Op)
        inputs = [None if v is None else _value(v, feeds) for v in node.inputs]
        if node.op.host_computes:
            self.host_nodes[node.name] = "how much comes out depends on the data"
        start_ns = time.perf_counter_ns()
        with Blaming(node):
            results = node.op.drive(inputs, _Runner(self))
        if self.recorder is not None and node.op.host_computes:
            self.recorder.record_node(node, start_ns)
        pairs = zip(node.outputs, results, strict=False)
        return {v.name: _held(v.type, x) for v, x in pairs}

    def _bound(self, plan: Plan, weights: Weights) -> BoundPlan:
        return BoundPlan(plan, self._session, weights, self._slabs, self._constants, self.stop)

    def _plan(
        self,
        graph: Graph,
        shapes: sizes.Shapes,
        known: Mapping[str, Array] = _NOTHING,
        tunables: Tunables = _NOTHING,
    ) -> tuple[Plan, GraphBreak | None]:
        every = {**shapes, **{n: a.shape for n, a in known.items()}}
        bindings = bind_dims(graph.inputs, every)
        first, graph_break = specialise_to_break(graph, bindings, shapes, known)

        @cache
        def record(kernel: str) -> Mapping[str, int]:
            return tunables[kernel] if kernel in tunables else record_for(kernel, self._caps)

        return make_plan(first, self._caps, record), graph_break

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


@dataclass(frozen=True)
class _Runner:
    """What a host_driven op may ask of the model: see `clrt.ops.base.Host`."""

    stages: Stages

    def run(self, graph: Graph, inputs: Sequence[Held]) -> list[Held]:
        """The outputs of a graph; what is computed stays on the device."""
        feeds = {
            v.name: _held(v.type, x)
            for v, x in zip(graph.inputs, inputs, strict=True)
            if x is not None or isinstance(v.type, ContainerType)
        }
        return list(self.stages.run(graph, feeds).values())

    def read(self, value: Held) -> Array:
        """The elements of a tensor."""
        return _on_host(value)


def _on_host(value: Held) -> Array:
    """The elements of a tensor, wherever it lies."""
    return value.numpy() if isinstance(value, DeviceTensor) else np.asarray(value)


def _value(value: Value, feeds: Mapping[str, Held]) -> Held:
    return value.numbers if value.is_constant else feeds[value.name]


def _is_there(value: Value, feeds: Mapping[str, Held]) -> bool:
    """Whether no plan need run for a value."""
    return value.has_numbers if value.is_constant else value.name in feeds


def _held(type_: TensorType, value: Held) -> Held:
    """A value in the form in which it waits for the next stage.

    Raises:
        ModelError: It is on the device and of another dtype: graphs of a node may say anything.
    """
    if value is None or isinstance(value, (list, dict)):
        return value
    if isinstance(value, DeviceTensor):
        if value.dtype is not type_.dtype:
            raise ModelError(
                f"A graph of a node gives {value.dtype} where {type_} is declared; export the "
                "model again."
            )
        return value
    return np.asarray(value, type_.dtype.numpy, order="C")

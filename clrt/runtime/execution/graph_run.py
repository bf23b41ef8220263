"""A graph run to its end: stage after stage, and the host's part between them."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from clrt.errors import ModelError, NumberError, OutOfMemoryError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, ContainerType, TensorType
from clrt.ops.base import Op, RuntimeValue, shapes_of
from clrt.ops.node_errors import NodeErrorContext
from clrt.plan.device_io import HOST_ONLY, DeviceIo
from clrt.plan.index_error_origin import traced
from clrt.plan.specialise import GraphBreak
from clrt.runtime.execution.arena_pool import ArenaPool
from clrt.runtime.execution.execution import Execution
from clrt.runtime.execution.external_buffers import Feed
from clrt.runtime.execution.launch_throttle import CancellationToken
from clrt.runtime.execution.planner import NOTHING, PlannedSegment, Planner
from clrt.runtime.execution.profiler import Recorder
from clrt.runtime.opencl.tensors import DeviceTensor
from clrt.util.active_calls import ActiveCall
from clrt.util.host_limits import check_iterations


@dataclass
class GraphRun:
    """One run of a model.

    Attributes:
        graph: The model's.
        stop: Ends it before its time.
        call: That it belongs to.
        recorder: Is told when its steps ran.
        iterations: Of graphs that its nodes hold.
    """

    planner: Planner
    room: ArenaPool
    graph: Graph
    stop: CancellationToken
    call: ActiveCall
    recorder: Recorder | None = None
    iterations: int = 0

    def outputs(
        self,
        feeds: Mapping[str, RuntimeValue],
        wanted: Mapping[str, bool],
        donated: Collection[str] = (),
    ) -> Mapping[str, RuntimeValue]:
        """The outputs of the model.

        Args:
            wanted: Names of the outputs, and whether each stays on the device.
            donated: Names of inputs whose memory may be used up.

        Raises:
            InputError: An index, a length or the like is out of range.
            OutOfMemoryError: There is no room for it; the model then holds no device memory.
            DeviceError: The driver fails.
            ClrtError: `stop` was requested.
        """
        try:
            return self._run(self.graph, feeds, wanted, donated)
        except NumberError as error:
            raise traced(error, self.graph) from error

    def begin(
        self,
        feeds: Mapping[str, RuntimeValue],
        wanted: Mapping[str, bool],
        donated: Collection[str] = (),
    ) -> tuple[dict[str, RuntimeValue], Execution] | None:
        """What is there without a plan, and the rest enqueued; None if that takes more than that.

        Raises:
            ClrtError: As `outputs`.
        """
        stage = self._stage(self.graph, feeds, wanted, donated, NOTHING)
        bound = next(iter(stage.bound.values()), None)
        if stage.graph_break is not None or bound is None or not bound.ready or bound.is_paced:
            return None
        there, missing = _split(self.graph, feeds, wanted)
        if not missing:
            return None
        execution = self._begin(stage, feeds, missing)
        execution.start()
        execution.detach()
        return there, execution

    def run(self, graph: Graph, inputs: Sequence[RuntimeValue]) -> list[RuntimeValue]:
        """The outputs of a graph that a node holds; what is computed stays on the device."""
        self.iterations += 1
        check_iterations(self.iterations, "The model")
        feeds = {
            v.name: _held(v.type, x)
            for v, x in zip(graph.inputs, inputs, strict=True)
            if x is not None or isinstance(v.type, ContainerType)
        }
        # The first iteration of a loop has arrays where the others have tensors: one plan for both.
        on_device = {n: self._on_device(f) for n, f in feeds.items()}
        try:
            return list(self._run(graph, on_device, None, ()).values())
        except NumberError as error:
            raise traced(error, self.graph) from error

    def _on_device(self, value: RuntimeValue) -> RuntimeValue:
        """An array that has axes as a tensor; all else as it is."""
        if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind != "U":
            return self.room.session.tensor_of(value, DType.of(value.dtype))
        return value

    def read(self, value: RuntimeValue) -> Array:
        """The elements of a tensor."""
        return _on_host(value)

    def notes(self, graph: Graph) -> dict[Hashable, Any]:
        """What ops have noted of a graph, kept as long as it is."""
        return self.planner.notes.setdefault(graph, {})

    def optimise(self, graph: Graph) -> None:
        """Optimises a graph in place, as that of the model was, and shares its constants."""
        with self.room.lock:
            self.planner.rewrite(graph)
            self.planner.adopt(graph)

    def _run(
        self,
        graph: Graph,
        feeds: Mapping[str, RuntimeValue],
        wanted: Mapping[str, bool] | None,
        donated: Collection[str],
    ) -> Mapping[str, RuntimeValue]:
        """The outputs of a graph.

        Args:
            wanted: None for all of them: what is computed stays on the device, and inputs and
                constants where they are.
        """
        known: Mapping[str, Array] = NOTHING
        while True:
            self.stop.check()
            stage = self._stage(graph, feeds, wanted, donated, known)
            graph_break = stage.graph_break
            if graph_break is not None and (later := _read_behind(graph_break) & set(donated)):
                # The first part must not use up what is read behind the graph break.
                stage = self._stage(graph, feeds, wanted, set(donated) - later, known)
                graph_break = stage.graph_break
            if graph_break is None:
                there, missing = _split(graph, feeds, wanted)
                made = self._execute(stage, feeds, missing) if missing else {}
                if wanted is not None and not there:
                    return made
                results = {**there, **made}
                return {n: results[n] for n in graph.output_names if n in results}
            feeds = self._pass_break(stage, graph_break, feeds)
            known = {n: _on_host(feeds[n]) for n in graph_break.known}
            graph = graph_break.suffix
            feeds = {v.name: feeds[v.name] for v in graph.inputs if v.name not in known}

    def _stage(
        self,
        graph: Graph,
        feeds: Mapping[str, RuntimeValue],
        wanted: Mapping[str, bool] | None,
        donated: Collection[str],
        known: Mapping[str, Array],
    ) -> PlannedSegment:
        shapes = shapes_of(feeds)
        tensors = [(n, f) for n, f in feeds.items() if isinstance(f, DeviceTensor)]
        kept = graph.output_names if wanted is None else [n for n in wanted if wanted[n]]
        contract = HOST_ONLY
        if tensors or kept:
            # Numbers alone are copied: a loop has them in both places.
            on_device = frozenset(n for n, f in tensors if wanted is not None or f.shape)
            contract = DeviceIo(on_device, on_device.intersection(donated), frozenset(kept))
        with self.room.lock:
            return self.planner.stage(graph, shapes, known, contract)

    def _pass_break(
        self, stage: PlannedSegment, graph_break: GraphBreak, feeds: Mapping[str, RuntimeValue]
    ) -> dict[str, RuntimeValue]:
        """All values there are once the host has done its part."""
        kept = {n: n not in graph_break.reads for n in stage.plan.graph.output_names}
        held = {**feeds, **(self._execute(stage, feeds, kept) if kept else {})}
        held.update({n: _on_host(held[n]) for n in graph_break.reads})
        for node in graph_break.host_driven:
            held.update(self._drive(node, held))
        return held

    def _execute(
        self, stage: PlannedSegment, feeds: Mapping[str, RuntimeValue], outputs: Mapping[str, bool]
    ) -> Mapping[str, Feed]:
        """Runs a stage where there is room for it."""
        execution = self._begin(stage, feeds, outputs)
        was_ready = execution.bound.ready
        try:
            results = execution.run()
            if not was_ready:
                with self.room.lock:
                    self.planner.kept.recount(stage)
            return results
        except OutOfMemoryError as error:
            self.room.release()
            if stage.plan.contract.donated:
                raise self.room.no_room(stage, error) from error
        # Alone, without what other shapes and other models' results left behind.
        try:
            return self._begin(stage, feeds, outputs).run()
        except OutOfMemoryError as error:
            self.room.release()
            raise self.room.no_room(stage, error) from error

    def _begin(
        self, stage: PlannedSegment, feeds: Mapping[str, RuntimeValue], outputs: Mapping[str, bool]
    ) -> Execution:
        # A plan has no inputs but tensors; the others are for the host.
        tensors = cast(Mapping[str, Feed], feeds)
        return self.room.begin(stage, tensors, outputs, self.stop, self.recorder, self.call)

    def _drive(self, node: Node, feeds: Mapping[str, RuntimeValue]) -> dict[str, RuntimeValue]:
        """The outputs of a node that the host drives."""
        assert isinstance(node.op, Op)
        inputs = [None if v is None else _value(v, feeds) for v in node.inputs]
        if node.op.computes_on_host:
            self.planner.host_nodes[node.name] = "how much comes out depends on the data"
        start_ns = time.perf_counter_ns()
        with NodeErrorContext(node):
            results = node.op.run_host_driven(inputs, self)
        if self.recorder is not None and node.op.computes_on_host:
            self.recorder.record_node(node, start_ns)
        pairs = zip(node.outputs, results, strict=False)
        return {v.name: _held(v.type, x) for v, x in pairs}


def _split(
    graph: Graph, feeds: Mapping[str, RuntimeValue], wanted: Mapping[str, bool] | None
) -> tuple[dict[str, RuntimeValue], Mapping[str, bool]]:
    """The outputs that are there without a plan, and the others with whether each stays."""
    there = {
        n: _value(v, feeds)
        for n, v in zip(graph.output_names, graph.outputs, strict=True)
        if v.type.on_host or (wanted is None and _is_there(v, feeds))
    }
    all_wanted = dict.fromkeys(graph.output_names, True) if wanted is None else wanted
    if not there:
        return there, all_wanted
    return there, {n: stays for n, stays in all_wanted.items() if n not in there}


def _read_behind(graph_break: GraphBreak) -> set[str]:
    """Names of the values that the host's nodes or the suffix read."""
    by_host = (v.name for n in graph_break.host_driven for v in n.inputs if v is not None)
    return {*by_host, *(v.name for v in graph_break.suffix.inputs)}


def _on_host(value: RuntimeValue) -> Array:
    """The elements of a tensor, wherever it lies."""
    return value.numpy() if isinstance(value, DeviceTensor) else np.asarray(value)


def _value(value: Value, feeds: Mapping[str, RuntimeValue]) -> RuntimeValue:
    return value.numbers if value.is_constant else feeds[value.name]


def _is_there(value: Value, feeds: Mapping[str, RuntimeValue]) -> bool:
    """Whether no plan need run for a value."""
    return value.has_numbers if value.is_constant else value.name in feeds


def _held(type_: TensorType, value: RuntimeValue) -> RuntimeValue:
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

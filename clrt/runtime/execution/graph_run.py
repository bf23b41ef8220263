"""`GraphRun`: runs a graph segment by segment, and host-driven nodes between the segments."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from clrt.errors import ClrtError, ModelError, NumberError, OutOfMemoryError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.node_errors import NodeErrorContext
from clrt.ir.op import Array, ContainerType, TensorType
from clrt.ir.runtime_values import RuntimeValue, shapes_of
from clrt.plan.device_io import HOST_ONLY, DeviceIo
from clrt.plan.graph_break import GraphBreak
from clrt.runtime.execution.arena_pool import ArenaPool
from clrt.runtime.execution.execution import Execution
from clrt.runtime.execution.external_buffers import Feed
from clrt.runtime.execution.launch_throttle import CancellationToken
from clrt.runtime.execution.plan_arguments import NOTHING
from clrt.runtime.execution.planner import PlannedSegment, Planner
from clrt.runtime.execution.profiler import Recorder
from clrt.runtime.opencl.tensors import DeviceTensor
from clrt.util.active_calls import ActiveCall
from clrt.util.fast_dataclass import dataclass
from clrt.util.host_limits import check_iterations


@dataclass
class GraphRun:
    """One run of a model, segment by segment; host-driven nodes call `run` for their subgraphs.

    Attributes:
        planner: Creates and caches the model's plans.
        room: Assigns arenas of the model.
        graph: Graph of the model, or a copy specialised for values of its inputs.
        stop: Cancels the run.
        call: Call that the run belongs to.
        recorder: Records when steps run, if a profile is requested; else None.
        iterations: Number of executions of subgraphs so far, which is limited.
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
        """Computes the outputs of the model.

        Args:
            feeds: Inputs of `graph` by name.
            wanted: Names of the requested outputs, and whether each stays on the device.
            donated: Names of inputs whose memory the run may overwrite.

        Returns:
            Array, device tensor, list, dict or None per requested output, by name.

        Raises:
            InputError: An index or length is out of range.
            OutOfMemoryError: The run does not fit; the model then holds no device memory.
            DeviceError: The driver fails.
            ClrtError: `stop` was requested.
        """
        try:
            return self._run(self.graph, feeds, wanted, donated)
        except NumberError as error:
            raise explained(error, self.graph) from error

    def begin(
        self,
        feeds: Mapping[str, RuntimeValue],
        wanted: Mapping[str, bool],
        donated: Collection[str] = (),
    ) -> tuple[dict[str, RuntimeValue], Execution] | None:
        """Enqueues the run without waiting, if it is a single plan that is bound and short.

        Args:
            feeds: Inputs of the graph by name.
            wanted: Names of the requested outputs, and whether each stays on the device.
            donated: Names of inputs whose memory the run may overwrite.

        Returns:
            Outputs available without running a plan, by name, and the detached execution that
            computes the remaining outputs. None, with nothing enqueued, if the run needs waits,
            several plans or no plan at all.

        Raises:
            ClrtError: The graph cannot be planned, `stop` was requested, or the driver fails.
        """
        stage = self._stage(self.graph, feeds, wanted, donated, NOTHING)
        bound = next(iter(stage.bound.values()), None)
        if stage.graph_break is not None or bound is None or not bound.ready or bound.is_paced:
            return None
        if stage.plan.on_twin:  # which would compute in this thread
            return None
        available, missing = _split(self.graph, feeds, wanted)
        if not missing:
            return None
        execution = self._begin(stage, feeds, missing)
        execution.start()
        execution.detach()
        return available, execution

    def run(self, graph: Graph, inputs: Sequence[RuntimeValue]) -> list[RuntimeValue]:
        """Runs a subgraph of a node, such as a loop body; computed outputs stay on the device.

        Args:
            inputs: Value of each input of the graph, in order; None for an absent one.

        Returns:
            Value of each output of the graph, in order.
        """
        self.iterations += 1
        check_iterations(self.iterations, "The model")
        feeds = {
            v.name: _coerce(v.type, x)
            for v, x in zip(graph.inputs, inputs, strict=True)
            if x is not None or isinstance(v.type, ContainerType)
        }
        # The first iteration of a loop gets arrays, the others tensors: convert to share one plan.
        on_device = {n: self._on_device(f) for n, f in feeds.items()}
        try:
            return list(self._run(graph, on_device, None, ()).values())
        except NumberError as error:
            raise explained(error, self.graph) from error

    def _on_device(self, value: RuntimeValue) -> RuntimeValue:
        """Uploads an array of rank 1 or more to a device tensor; returns other values unchanged."""
        if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind != "U":
            return self.room.session.tensor_of(value, DType.of(value.dtype))
        return value

    def read(self, value: RuntimeValue) -> Array:
        """Returns the elements of a tensor as a host array."""
        return _on_host(value)

    def notes(self, graph: Graph) -> dict[Hashable, Any]:
        """Returns a dict in which host-driven ops cache data about a subgraph that they run.

        The dict lives as long as the graph, across runs.
        """
        return self.planner.notes.setdefault(graph, {})

    def optimise(self, graph: Graph) -> None:
        """Applies the model's passes to a graph in place; all plans then share its constants."""
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
        """Computes the outputs of a graph, segment by segment.

        Args:
            feeds: Inputs of the graph by name.
            wanted: Names of the requested outputs, and whether each stays on the device. None for
                all outputs: computed outputs stay on the device, while inputs and constants are
                returned as they are.
            donated: Names of inputs whose memory the run may overwrite.
        """
        known: Mapping[str, Array] = NOTHING
        while True:
            self.stop.check()
            stage = self._stage(graph, feeds, wanted, donated, known)
            graph_break = stage.graph_break
            if graph_break is not None and (later := _read_behind(graph_break) & set(donated)):
                # The segment must not reuse the memory of inputs that are read after the break.
                stage = self._stage(graph, feeds, wanted, set(donated) - later, known)
                graph_break = stage.graph_break
            if graph_break is None:
                available, missing = _split(graph, feeds, wanted)
                computed = self._execute(stage, feeds, missing) if missing else {}
                if wanted is not None and not available:
                    return computed
                results = {**available, **computed}
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
        """Returns the plan of a graph for some inputs, up to the first graph break.

        Args:
            feeds: Inputs of the graph by name.
            wanted: Names of the requested outputs, and whether each stays on the device; None for
                all outputs, on the device.
            donated: Names of inputs whose memory the run may overwrite.
            known: Elements of the inputs that planning needs, by name.
        """
        shapes = shapes_of(feeds)
        tensors = [(n, f) for n, f in feeds.items() if isinstance(f, DeviceTensor)]
        kept = graph.output_names if wanted is None else [n for n in wanted if wanted[n]]
        contract = HOST_ONLY
        if tensors or kept:
            # Scalars go through the host: a loop has them on either side, and one plan must serve
            # both.
            on_device = frozenset(n for n, f in tensors if wanted is not None or f.shape)
            contract = DeviceIo(on_device, on_device.intersection(donated), frozenset(kept))
        latest = None if known else self.planner.latest(graph, shapes, contract)
        if latest is not None:
            return latest
        with self.room.lock:
            return self.planner.stage(graph, shapes, known, contract)

    def _pass_break(
        self, stage: PlannedSegment, graph_break: GraphBreak, feeds: Mapping[str, RuntimeValue]
    ) -> dict[str, RuntimeValue]:
        """Runs a segment and the host-driven nodes at the graph break after it.

        Args:
            stage: The segment.
            graph_break: Graph break after it.
            feeds: Inputs of the graph by name.

        Returns:
            The values of `feeds` and all computed values, by name.
        """
        outputs = {n: n not in graph_break.reads for n in stage.plan.graph.output_names}
        values = {**feeds, **(self._execute(stage, feeds, outputs) if outputs else {})}
        values.update({n: _on_host(values[n]) for n in graph_break.reads})
        for node in graph_break.host_driven:
            values.update(self._drive(node, values))
        return values

    def _execute(
        self, stage: PlannedSegment, feeds: Mapping[str, RuntimeValue], outputs: Mapping[str, bool]
    ) -> Mapping[str, Feed]:
        """Runs a segment; if it is out of memory, frees all other memory and tries once more.

        Args:
            stage: The segment.
            feeds: Inputs of the segment by name.
            outputs: Names of the requested outputs, and whether each stays on the device.

        Returns:
            Array or device tensor per requested output, by name.

        Raises:
            OutOfMemoryError: The segment does not fit. With donated inputs there is no second
                attempt, since the first may have overwritten them.
        """
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
            if stage.plan.device_io.donated:
                raise self.room.no_room(stage, error) from error
        # Retry, now that the memory of other shapes and of released tensors is free.
        try:
            return self._begin(stage, feeds, outputs).run()
        except OutOfMemoryError as error:
            self.room.release()
            raise self.room.no_room(stage, error) from error

    def _begin(
        self, stage: PlannedSegment, feeds: Mapping[str, RuntimeValue], outputs: Mapping[str, bool]
    ) -> Execution:
        # Plans read only tensors; other values are for host-driven nodes.
        tensors = cast("Mapping[str, Feed]", feeds)
        return self.room.begin(stage, tensors, outputs, self.stop, self.recorder, self.call)

    def _drive(self, node: Node, feeds: Mapping[str, RuntimeValue]) -> dict[str, RuntimeValue]:
        """Computes a host-driven node and returns its outputs by name.

        Args:
            feeds: Values by name, including all inputs of the node.
        """
        from clrt.ops.base import Op  # imported late: most models have no host-driven nodes

        op = node.op_as(Op)
        inputs = [None if v is None else _value(v, feeds) for v in node.inputs]
        if op.computes_on_host:
            self.planner.host_nodes[node.name] = "how much comes out depends on the data"
        start_ns = time.perf_counter_ns()
        with NodeErrorContext(node):
            results = op.run_host_driven(inputs, self)
        if self.recorder is not None and op.computes_on_host:
            self.recorder.record_node(node, start_ns)
        pairs = zip(node.outputs, results, strict=False)
        return {v.name: _coerce(v.type, x) for v, x in pairs}


def explained(error: NumberError, model: Graph) -> ClrtError:
    """Returns the error to raise for an out-of-range number that a kernel reported.

    Args:
        model: Graph of the whole model, in which the number's origin is looked up.
    """
    from clrt.plan.index_error_origin import explain_index_error  # imports ops

    return explain_index_error(error, model)


def _split(
    graph: Graph, feeds: Mapping[str, RuntimeValue], wanted: Mapping[str, bool] | None
) -> tuple[dict[str, RuntimeValue], Mapping[str, bool]]:
    """Splits requested outputs into available ones, which need no plan, and ones to compute.

    Args:
        feeds: Inputs of the graph by name.
        wanted: Names of the requested outputs, and whether each stays on the device; None for all
            outputs, on the device.

    Returns:
        Available values by name, and the names of the outputs to compute, with whether each stays
        on the device.
    """
    if wanted is not None:
        for value in graph.outputs:
            if value.type.on_host:
                break
        else:
            return {}, wanted
    available = {
        n: _value(v, feeds)
        for n, v in zip(graph.output_names, graph.outputs, strict=True)
        if v.type.on_host or (wanted is None and _is_available(v, feeds))
    }
    all_wanted = dict.fromkeys(graph.output_names, True) if wanted is None else wanted
    if not available:
        return available, all_wanted
    return available, {n: stays for n, stays in all_wanted.items() if n not in available}


def _read_behind(graph_break: GraphBreak) -> set[str]:
    """Returns the names of the values that a graph break's host-driven nodes or its suffix read."""
    by_host = (v.name for n in graph_break.host_driven for v in n.inputs if v is not None)
    return {*by_host, *(v.name for v in graph_break.suffix.inputs)}


def _on_host(value: RuntimeValue) -> Array:
    """Returns the elements of an array or device tensor as a host array."""
    return value.numpy() if isinstance(value, DeviceTensor) else np.asarray(value)


def _value(value: Value, feeds: Mapping[str, RuntimeValue]) -> RuntimeValue:
    return value.numbers if value.is_constant else feeds[value.name]


def _is_available(value: Value, feeds: Mapping[str, RuntimeValue]) -> bool:
    """Returns whether a value is known without running a plan: a constant or an input.

    Args:
        value: Value of the graph.
        feeds: Inputs of the graph by name.
    """
    return value.has_numbers if value.is_constant else value.name in feeds


def _coerce(type_: TensorType, value: RuntimeValue) -> RuntimeValue:
    """Converts an array to the dtype of `type_`; returns lists, dicts, None and tensors unchanged.

    Raises:
        ModelError: A device tensor has another dtype than `type_`: the file declares a wrong type.
    """
    if value is None or isinstance(value, (list, dict)):
        return value
    if isinstance(value, DeviceTensor):
        if value.dtype is not type_.dtype:
            raise ModelError(
                f"A subgraph returns {value.dtype}, but {type_} is declared; export the "
                "model again."
            )
        return value
    return np.asarray(value, type_.dtype.numpy, order="C")

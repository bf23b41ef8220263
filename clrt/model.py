"""What users touch: `load` and `Model`."""

from __future__ import annotations

import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any

import numpy as np

from clrt import knobs
from clrt.container.compiled import read_compiled
from clrt.errors import (
    ClrtError,
    HostFallbackWarning,
    InputError,
    OutOfMemoryError,
    UnsupportedError,
)
from clrt.inspection import memory as sizes
from clrt.inspection.explain import Explanation, explain
from clrt.inspection.memory import Memory
from clrt.inspection.units import format_shapes
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, ContainerType, TensorType
from clrt.ops.base import Held, Op, all_graphs
from clrt.passes.driver import PassReport
from clrt.passes.pipeline import optimize
from clrt.plan.plan import Plan, make_plan
from clrt.plan.specialise import Cut, specialise_to_cut
from clrt.profiling.collect import collect
from clrt.profiling.profile import Profile
from clrt.runtime.devices import DeviceInfo, choose_device
from clrt.runtime.executor import BoundPlan, Feed, Slabs, Weights
from clrt.runtime.profiler import Recorder
from clrt.runtime.session import DeviceTensor, session_for
from clrt.signature import Signature, bind_dims
from clrt.sources import Source, is_compiled, read_graph
from clrt.tuning.records import record_for

MAX_PLANS = 64


def load(
    source: Source,
    *,
    device: str | int | None = None,
    strict: bool | None = None,
    cache_dir: str | Path | None = None,
    optimize_level: int = 2,
    memory_limit: int | str | None = None,
) -> Model:
    """Loads a model and optimises it for a device.

    Args:
        source: An ONNX file, its bytes, an `onnx.ModelProto`, or a Hugging Face folder: its
            `onnx/model.onnx` or `model.onnx` where it has one, else the graph is built from
            `config.json` and the safetensors weights (bert, roberta, distilbert, mpnet, …); or a
            compiled model, which `clrt-convert` made.
        device: "auto", "cpu", "gpu", part of a platform or device name, or an index of
            `clrt.devices()`; None takes CLRT_DEVICE, else "auto".
        strict: Whether a node that no kernel fits is an error instead of running on the host;
            None takes CLRT_STRICT.
        cache_dir: Folder for compiled programs; None takes CLRT_CACHE_DIR, else the user's cache.
        optimize_level: 0 runs no graph pass, 2 all of them. A compiled model has them behind it.
        memory_limit: What the model may allocate on the device, in bytes or as "2GiB": a run that
            needs more is refused before it allocates anything. None: what the device has.

    Raises:
        ModelError: The file is missing, damaged or not ONNX.
        UnsupportedError: The model has nodes that clrt does not support; all are named.
        DeviceError: The device asked for is absent.
    """
    info = choose_device(device)
    limit = None if memory_limit is None else sizes.parse_bytes(memory_limit)
    folder = None if cache_dir is None else Path(cache_dir)
    if is_compiled(source):
        compiled = read_compiled(Path(source))
        return Model(compiled.graph, info, strict, folder, None, limit, compiled.shapes)
    graph = read_graph(source)
    report = optimize(graph, optimize_level, narrow_weights=True)
    return Model(graph, info, strict, folder, report, limit)


@dataclass(frozen=True)
class Stage:
    """A plan, and where the graph goes on after it."""

    bound: BoundPlan
    cut: Cut | None


class Model:
    """A model on a device. Use `load` to make one.

    `run` may be called from several threads: calls on one device take turns. As a context manager
    it frees its device memory at the end.

    Attributes:
        inputs, outputs: What `run` takes and gives.
        device: The device it runs on.
        report: What the graph passes did.
        host_nodes: The nodes that computed on the host so far, by name, and why.
        memory_limit: Bytes that it may allocate on the device; None for what there is.
        shapes: Sets of input shapes that a compiled model was made for.
    """

    def __init__(
        self,
        graph: Graph,
        device: DeviceInfo,
        strict: bool | None = None,
        cache_dir: Path | None = None,
        report: PassReport | None = None,
        memory_limit: int | None = None,
        shapes: Sequence[Mapping[str, Sequence[int]]] = (),
    ) -> None:
        self.shapes = tuple(shapes)
        self.device = device
        self.report = report
        self.memory_limit = memory_limit
        self._graph = graph
        self._strict = knobs.STRICT.get() if strict is None else strict
        self._session = session_for(device, cache_dir)
        self._signature = Signature(graph, self._session)
        self.inputs, self.outputs = self._signature.inputs, self._signature.outputs
        self._weights = Weights(self._session)
        self._slabs = Slabs(self._session)
        self._constants = frozenset(v for g in all_graphs(graph) for v in g.constants())
        self._stages: OrderedDict[Any, Stage] = OrderedDict()
        self.host_nodes: dict[str, str] = {}
        self._recorder: Recorder | None = None
        self._lock = RLock()
        self._closed = False

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        takes = ", ".join(map(str, self.inputs))
        return f"<clrt.Model ({takes}) on {self.device}>"

    def close(self) -> None:
        """Frees the device memory; the model cannot run afterwards."""
        with self._lock:
            self._release()
            self._closed = True

    def _release(self) -> None:
        """Frees the device memory; what is needed again is made again."""
        self._stages.clear()
        self._weights.clear()
        self._slabs.clear()
        self._session.trim()

    def run(
        self,
        inputs: Mapping[str, Any] | Any,
        outputs: Sequence[str] | None = None,
        device_outputs: bool = False,
    ) -> dict[str, Any]:
        """Runs the model.

        Args:
            inputs: An array (or DeviceTensor) per input name; for a model with one input, the
                array alone. Lossless casts are made (int32 to int64, say), others refused.
            outputs: The outputs wanted; all by default.
            device_outputs: Whether results stay on the device, as DeviceTensors.

        Returns:
            An ndarray or DeviceTensor per output name.

        Raises:
            InputError: An input is missing, unknown, or of a wrong dtype or value.
            ShapeError: An input has a wrong rank or dim.
            OutOfMemoryError: The device has no room for these shapes; the model stays usable.
        """
        names = self._signature.wanted(outputs)
        feeds = self._signature.feeds(inputs)
        with self._lock:
            if self._closed:
                raise InputError("This model is closed; load it again to run it.")
            results = self._run(self._graph, feeds, dict.fromkeys(names, device_outputs))
        return {name: _for_user(results[name], device_outputs) for name in names}

    def profile(self, inputs: Mapping[str, Any] | Any, repeat: int = 20) -> Profile:
        """Where the time of a run goes: print it, or save it as a trace or an HTML page.

        Args:
            inputs: As `run` takes them.
            repeat: How often to run under the profiler, and as often without.

        Raises:
            InputError: As `run`, or `repeat` is less than 1.
        """
        if repeat < 1:
            raise InputError(f"repeat is {repeat}; a profile needs at least one run.")
        feeds = self._signature.feeds(inputs)

        def run(recorder: Recorder | None) -> None:
            self._recorder = recorder
            try:
                self._run(self._graph, feeds, {s.name: False for s in self.outputs})
            finally:
                self._recorder = None

        with self._lock:
            if self._closed:
                raise InputError("This model is closed; load it again to profile it.")
            shapes = {n: tuple(f.shape) for n, f in feeds.items() if hasattr(f, "shape")}
            return collect(self._session, run, self._graph.name, shapes, repeat)

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """The execution plan for given input shapes: steps, launches, arena.

        Where shapes depend on computed data it goes as far as the first of those.
        """
        with self._lock:
            return self._stage(self._graph, {n: tuple(s) for n, s in shapes.items()}, {}).bound.plan

    def memory(self, shapes: Mapping[str, Sequence[int]]) -> Memory:
        """The memory that a run at given input shapes needs; nothing is allocated for it.

        Where shapes depend on computed data it goes as far as the first of those.

        Raises:
            OutOfMemoryError: A single buffer is larger than the device can allocate.
        """
        return sizes.memory_of(*self._plan(self._graph, self._shapes(shapes)), self._constants)

    def explain(self, shapes: Mapping[str, Sequence[int]]) -> Explanation:
        """Why the plan for given input shapes is as it is: print it, or take its `rows`.

        Per node where it runs, by which kernel and why, the ONNX nodes it stands for, and what it
        moves; and what the graph passes did and nearly did. Where shapes depend on computed data
        it goes as far as the first of those.
        """
        plan, cut = self._plan(self._graph, self._shapes(shapes))
        memory = sizes.memory_of(plan, cut, self._constants)
        caps, device = self.device.caps, str(self.device)
        return explain(self._graph, plan, cut, caps, device, memory, self.report)

    def best_batch_size(
        self, shapes: Mapping[str, Sequence[int]], memory_limit: int | str | None = None
    ) -> int:
        """The largest batch with which a run fits; found by planning alone.

        Args:
            shapes: Input shapes at any batch. The batch is the symbol of their axis 0.
            memory_limit: Bytes of the device, or text such as "2GiB"; None takes the model's limit,
                else all that the device has.

        Raises:
            OutOfMemoryError: Not even a batch of 1 fits.
            InputError: Axis 0 of the inputs is fixed.
        """
        limit = self._limit if memory_limit is None else sizes.parse_bytes(memory_limit)
        smallest = self._batches(shapes)(1)
        if (batch := self._fitting_batch(shapes, limit)) > 0:
            return batch
        text = format_shapes(smallest)
        raise sizes.out_of_memory(text, self.memory(smallest), limit, "there are", 0)

    @property
    def _limit(self) -> int:
        own, there_is = self.memory_limit, self.device.caps.global_mem_bytes
        return there_is if own is None else own

    def _batches(self, shapes: Mapping[str, Sequence[int]]) -> Callable[[int], sizes.Shapes]:
        inputs, given = self._graph.inputs, self._shapes(shapes)
        return sizes.at_batch(inputs, bind_dims(inputs, given), given)

    def _fitting_batch(self, shapes: Mapping[str, Sequence[int]], limit: int) -> int:
        resized = self._batches(shapes)
        return sizes.largest_batch(lambda n: self.memory(resized(n)).device_bytes, limit)

    def _shapes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """Input shapes as planning takes them."""
        self._signature.check_names(shapes)
        return {n: tuple(int(d) for d in s) for n, s in shapes.items()}

    def warmup(
        self,
        shapes: Iterable[Mapping[str, Sequence[int]]] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Plans and runs each set of input shapes once on zeros, so that later runs are fast.

        Args:
            shapes: None takes those that a compiled model was made for. It holds no plans, which
                depend on the device and take milliseconds.
            progress: Called with (done, total) after each.
        """
        todo = list(self.shapes if shapes is None else shapes)
        for done, group in enumerate(todo, start=1):
            self._signature.check_names(group)
            self.run({s.name: np.zeros(tuple(group[s.name]), s.dtype.numpy) for s in self.inputs})
            if progress is not None:
                progress(done, len(todo))

    def save_programs(self) -> None:
        """Writes the programs compiled so far to the cache folder, now and not at exit."""
        self._session.programs.save()

    def _run(
        self, graph: Graph, feeds: dict[str, Held], outputs: Mapping[str, bool]
    ) -> dict[str, Held]:
        """Runs stage after stage; `outputs` says which of the wanted ones stay on the device."""
        known = dict[str, Array]()
        while True:
            shapes = {n: tuple(f.shape) for n, f in feeds.items() if hasattr(f, "shape")}
            stage = self._stage(graph, shapes, known)
            cut = stage.cut
            if cut is None:
                results = dict[str, Held](self._run_stage(stage, feeds, outputs))
                pairs = zip(graph.output_names, graph.outputs, strict=True)
                results.update((n, _value(v, feeds)) for n, v in pairs if v.type.on_host)
                return {n: results[n] for n in graph.output_names if n in results}
            kept = {n: n not in cut.reads for n in stage.bound.plan.graph.output_names}
            feeds = {**feeds, **(self._run_stage(stage, feeds, kept) if kept else {})}
            feeds.update({n: on_host(feeds[n]) for n in cut.reads})
            known = {} if cut.driven else {n: feeds[n] for n in cut.reads}
            if cut.driven:
                feeds.update(self._drive(cut.node, feeds))
            graph = cut.rest
            feeds = {v.name: feeds[v.name] for v in graph.inputs if v.name not in known}

    def _run_stage(
        self, stage: Stage, feeds: Mapping[str, Held], outputs: Mapping[str, bool]
    ) -> dict[str, Feed]:
        """Runs a stage where there is room for it.

        Raises:
            OutOfMemoryError: There is none; the model then holds no device memory.
        """
        bound = stage.bound
        if not bound.ready:
            self._make_room(stage)
        try:
            return bound.run(feeds, outputs, self._recorder)
        except OutOfMemoryError:
            self._release()
        # Alone, without what other shapes and other models' results left behind.
        try:
            return bound.run(feeds, outputs, self._recorder)
        except OutOfMemoryError as error:
            self._release()
            raise self._no_room(stage, self._limit) from error

    def _make_room(self, stage: Stage) -> None:
        """Frees what other shapes left where the limit asks for it.

        Raises:
            OutOfMemoryError: The stage alone is over the limit.
        """
        bound, limit = stage.bound, self._limit
        memory = sizes.memory_of(bound.plan, stage.cut, self._constants)
        if memory.device_bytes > limit:
            raise self._no_room(stage, limit)
        weights = {k: n for k, n in sizes.uploads(bound.plan).items() if k[0] in self._constants}
        weights.update(self._weights.sizes)
        slabs = zip_longest(self._slabs.sizes, bound.plan.arena.slab_bytes, fillvalue=0)
        others = sum(s.bound.own_bytes for s in self._stages.values() if s is not stage)
        grown = sum(weights.values()) + sum(map(max, slabs)) + others + memory.plan_bytes
        if grown > limit:
            self._release()

    def _no_room(self, stage: Stage, limit: int) -> OutOfMemoryError:
        plan = stage.bound.plan
        memory = sizes.memory_of(plan, stage.cut, self._constants)
        shapes = {v.name: v.dims for v in plan.graph.inputs}
        fitting = self._fitting_batch_for(shapes, limit) if memory.device_bytes > limit else None
        of = "the device has" if self.memory_limit is None else "memory_limit allows"
        text = format_shapes(shapes)
        return sizes.out_of_memory(text, memory, limit, of, fitting)

    def _fitting_batch_for(self, shapes: sizes.Shapes, limit: int) -> int | None:
        """`_fitting_batch` where these are shapes of the whole model and it has a batch."""
        if shapes.keys() == {s.name for s in self.inputs}:
            with suppress(InputError):
                return self._fitting_batch(shapes, limit)
        return None

    def _drive(self, node: Node, feeds: Mapping[str, Held]) -> dict[str, Held]:
        """The outputs of a node that the host drives."""
        assert isinstance(node.op, Op)
        inputs = [None if v is None else _value(v, feeds) for v in node.inputs]
        if not node.op.driven:
            self.host_nodes[node.name] = "how much comes out depends on the data"
        start_ns = time.perf_counter_ns()
        try:
            results = node.op.drive(inputs, _Runner(self))
        except ClrtError as error:
            raise type(error)(f"{node}: {error}") from error
        if self._recorder is not None and not node.op.driven:
            self._recorder.record_node(node, start_ns)
        pairs = zip(node.outputs, results, strict=False)
        return {v.name: _held(v.type, x) for v, x in pairs}

    def _stage(
        self, graph: Graph, shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, Array]
    ) -> Stage:
        names = [v.name for v in graph.inputs]
        data = tuple((n, a.shape, a.tobytes()) for n, a in known.items())
        key = (graph, tuple(shapes.get(n) for n in names), data)
        stage = self._stages.get(key)
        if stage is None:
            try:
                stage = self._make_stage(graph, shapes, known, {})
            except OutOfMemoryError as error:
                fitting = self._fitting_batch_for(shapes, self._limit)
                raise sizes.with_batch(error, fitting) from error
            self._announce(stage.bound.plan)
            self._stages[key] = stage
            while len(self._stages) > MAX_PLANS:
                self._stages.popitem(last=False)
        self._stages.move_to_end(key)
        return stage

    def bind(
        self, shapes: Mapping[str, tuple[int, ...]], tunables: Mapping[str, Mapping[str, int]]
    ) -> BoundPlan:
        """A plan of its own for given input shapes, as the tuner compares them.

        Args:
            tunables: The `T_` macros of kernels by entry point, in place of the tuning records.
        """
        return self._make_stage(self._graph, shapes, {}, tunables).bound

    def _make_stage(
        self,
        graph: Graph,
        shapes: Mapping[str, tuple[int, ...]],
        known: Mapping[str, Array],
        tunables: Mapping[str, Mapping[str, int]],
    ) -> Stage:
        plan, cut = self._plan(graph, shapes, known, tunables)
        return Stage(
            BoundPlan(plan, self._session, self._weights, self._slabs, self._constants), cut
        )

    def _plan(
        self,
        graph: Graph,
        shapes: Mapping[str, tuple[int, ...]],
        known: Mapping[str, Array] = MappingProxyType({}),
        tunables: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
    ) -> tuple[Plan, Cut | None]:
        """A plan, of which the device knows nothing yet."""
        every = {**shapes, **{n: a.shape for n, a in known.items()}}
        bindings = bind_dims(graph.inputs, every)
        first, cut = specialise_to_cut(graph, bindings, shapes, known)
        caps = self.device.caps

        @cache
        def record(kernel: str) -> Mapping[str, int]:
            return tunables[kernel] if kernel in tunables else record_for(kernel, caps)

        return make_plan(first, caps, record), cut

    def _announce(self, plan: Plan) -> None:
        """Says once which nodes run on the host, or refuses to under strict."""
        new = [s for s in plan.host_steps if s.node.name not in self.host_nodes]
        if not new:
            return
        listing = "; ".join(f"{s.node} ({s.reason})" for s in new)
        if self._strict:
            raise UnsupportedError(
                f"No kernel on {self.device.name} for: {listing}. Load with strict=False to run "
                "these nodes on the host.",
                [repr(s.node) for s in new],
            )
        self.host_nodes.update({s.node.name: s.reason for s in new})
        warnings.warn(
            f"{len(new)} node(s) run on the host, not on {self.device.name}: {listing}. "
            "Load with strict=True to make this an error.",
            HostFallbackWarning,
            stacklevel=4,
        )


@dataclass(frozen=True)
class _Runner:
    """What a driven op may ask of the model: see `clrt.ops.base.Host`."""

    model: Model

    def run(self, graph: Graph, inputs: Sequence[Held]) -> list[Held]:
        """The outputs of a graph; tensors stay on the device."""
        feeds = {
            v.name: _held(v.type, x)
            for v, x in zip(graph.inputs, inputs, strict=True)
            if x is not None or isinstance(v.type, ContainerType)
        }
        return list(self.model._run(graph, feeds, dict.fromkeys(graph.output_names, True)).values())

    def read(self, value: Held) -> Array:
        """The elements of a tensor."""
        return on_host(value)


def on_host(feed: Held) -> Array:
    """The elements of a tensor, wherever it lies."""
    return feed.numpy() if isinstance(feed, DeviceTensor) else np.asarray(feed)


def _value(value: Value, feeds: Mapping[str, Held]) -> Held:
    return value.numbers if value.is_constant else feeds[value.name]


def _held(type_: TensorType, value: Held) -> Held:
    """A value in the form in which it waits for the next stage."""
    if value is None or isinstance(value, (list, DeviceTensor)):
        return value
    return np.asarray(value, type_.dtype.numpy, order="C")


def _for_user(value: Held, device_outputs: bool) -> Any:
    """A result as `run` returns it: strings as objects, sequences as lists."""
    if isinstance(value, list):
        return [_for_user(item, device_outputs) for item in value]
    if isinstance(value, DeviceTensor):
        return value if device_outputs else value.numpy()
    return value.astype(object) if value is not None and value.dtype.kind == "U" else value

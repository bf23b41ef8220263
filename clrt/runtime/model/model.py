"""What users touch: `load` and `Model`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from clrt.errors import ClrtError, InputError
from clrt.formats.safetensors import SafetensorsHeader
from clrt.ir.graph import Graph
from clrt.models.compiled import read_compiled
from clrt.models.sources import Source, is_compiled, read_graph
from clrt.ops.base import RuntimeValue, shapes_of
from clrt.passes.device_pipeline import optimize_for, prepare
from clrt.passes.driver import PassReport
from clrt.runtime.execution.profiler import Recorder
from clrt.runtime.execution.request import RunRequest
from clrt.runtime.execution.run import Run
from clrt.runtime.execution.runner import Runner
from clrt.runtime.execution.signature import Signature
from clrt.runtime.execution.state import State
from clrt.runtime.model.pickling import PicklesBySource, recording
from clrt.runtime.model.planned_model import PlannedModel
from clrt.runtime.opencl.devices import DeviceInfo, choose_device
from clrt.runtime.opencl.session import session_for
from clrt.runtime.opencl.sub_devices import with_cores
from clrt.runtime.selftest.gate import ensure_right
from clrt.util import env_vars
from clrt.util.files import expanded
from clrt.util.formatting import parse_bytes
from clrt.util.gc_control import gc_young_only

if TYPE_CHECKING:
    from clrt.runtime.profiling.profile import Profile

_PRIORITIES = ("normal", "background")
_MODELS: WeakSet[Model] = WeakSet()


def _after_fork_in_child() -> None:
    for model in _MODELS:
        model._runner.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@recording
@gc_young_only
def load(
    source: Source | SafetensorsHeader,
    *,
    device: str | int | DeviceInfo | None = None,
    strict: bool | None = None,
    cache_dir: str | Path | None = None,
    optimize_level: int = 2,
    memory_limit: int | str | None = None,
    priority: str = "normal",
    cores: int | None = None,
) -> Model:
    """Loads a model and optimises it for a device.

    Args:
        source: An ONNX file, its bytes, an `onnx.ModelProto`, or a Hugging Face folder: its
            `onnx/model.onnx` or `model.onnx` where it has one, else the graph is built from
            `config.json` and the safetensors weights (bert, roberta, distilbert, mpnet, …); or a
            compiled model, which `clrt-convert` made. `~` in front of a path is the home folder.
        device: "auto", "cpu", "gpu", part of a platform or device name, or one of
            `clrt.devices()` or its index; None takes CLRT_DEVICE, else "auto".
        strict: Whether a node that no kernel fits is an error instead of running on the host;
            None takes CLRT_STRICT.
        cache_dir: Folder for compiled programs; None takes CLRT_CACHE_DIR, else the user's cache.
        optimize_level: 0 runs no graph pass, 2 all of them. A compiled model has them behind it.
        memory_limit: What the model may allocate on the device, in bytes or as "2GiB": a run that
            needs more is refused before it allocates anything. None: what the device has.
        priority: "background" for a model whose runs give way to those of all others on the
            device, and have little of it in the queue at a time; else "normal".
        cores: How many cores a CPU device computes on; below 0, how many it leaves free. Tensors on
            the device pass between models with the same number. None: all.

    Raises:
        ModelError: The file is missing, damaged or not ONNX.
        UnsupportedError: The model has nodes that clrt does not support; all are named.
        DeviceError: The device asked for is absent, or its self-test found that it miscomputes.
        InputError: An option has no valid value, or the source is of another type.
    """
    if optimize_level not in (0, 1, 2):
        raise InputError(f"optimize_level is {optimize_level!r}; it is 0, 1 or 2.")
    if priority not in _PRIORITIES:
        raise InputError(f"priority is {priority!r}; it is 'normal' or 'background'.")
    info = choose_device(device)
    if cores is not None:
        info = with_cores(info, cores)
    limit = None if memory_limit is None else parse_bytes(memory_limit)
    folder = None if cache_dir is None else expanded(cache_dir)
    if isinstance(source, (str, Path)):
        source = expanded(source)
    if isinstance(source, SafetensorsHeader) or is_compiled(source):
        compiled = read_compiled(source if isinstance(source, SafetensorsHeader) else Path(source))
        prepare(compiled.graph, info.caps)
        graph, shapes = compiled.graph, compiled.shapes
        model = Model(graph, info, strict, folder, None, limit, shapes, priority)
        model._runner.check = compiled.check
        return model
    graph = read_graph(source)
    report = optimize_for(graph, info.caps, optimize_level)
    return Model(graph, info, strict, folder, report, limit, (), priority, optimize_level)


class Model(PlannedModel, PicklesBySource):
    """A model on a device. Use `load` to make one.

    `run` may be called from several threads. As a context manager it frees its device memory at the
    end. It pickles as its path, or as its graph where it came from memory, and copies.

    Attributes:
        inputs, outputs: What `run` takes and gives.
        overridable: Names of inputs that `run` may be given besides: initializers that an ONNX file
            lists as inputs, too. The first run with some of them loads the model anew for these.
        device: The device it runs on.
        report: What the graph passes did.
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
        priority: str = "normal",
        optimize_level: int = 2,
    ) -> None:
        self.shapes = tuple(shapes)
        self.device = device
        self.report = report
        self._graph = graph
        self._session = session_for(device, cache_dir)
        ensure_right(self._session)
        self._signature = Signature(graph, self._session)
        self.inputs, self.outputs = self._signature.inputs, self._signature.outputs
        self.overridable = () if graph.defaults is None else graph.defaults.names
        self._variants: dict[frozenset[str], Model] = {}
        self._making = Lock()
        strict = env_vars.STRICT.get() if strict is None else strict
        self._options = (strict, cache_dir, memory_limit, priority, optimize_level)
        rewrite = partial(optimize_for, caps=device.caps, level=optimize_level)
        background = priority == "background"
        self._runner = Runner(graph, rewrite, self._session, strict, memory_limit, background)
        _MODELS.add(self)

    @property
    def host_nodes(self) -> dict[str, str]:
        """The nodes that computed on the host so far, by name, and why."""
        return self._runner.planner.host_nodes

    @property
    def properties(self) -> Mapping[str, str]:
        """What the exporter wrote into the file besides the graph: an ONNX file's metadata."""
        return self._graph.properties

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        takes = ", ".join(map(str, self.inputs))
        return f"<clrt.Model ({takes}) on {self.device}>"

    def close(self) -> None:
        """Frees the device memory; the model cannot run afterwards.

        A run in another thread ends with an error after what it has on the device, a tenth of a
        second or one kernel. Where it takes longer than a second to end it frees the memory itself.
        """
        self._runner.close()
        for model in tuple(self._variants.values()):
            model.close()

    def trim(self) -> None:
        """Frees what runs have left: arenas, pooled buffers and plans; the weights stay.

        It waits for runs of other threads. The next run plans and allocates anew.

        Raises:
            InputError: The model is closed.
        """
        self._runner.trim()
        for model in tuple(self._variants.values()):
            model.trim()

    def _given(self, inputs: Mapping[str, Any] | Any) -> Model:
        """The model for a run with these inputs: another one if some are overridable."""
        if not self.overridable or not isinstance(inputs, Mapping):
            return self
        names = frozenset(name for name in self.overridable if name in inputs)
        defaults = self._graph.defaults
        if not names or defaults is None:
            return self
        with self._making:
            if names not in self._variants:
                strict, folder, limit, priority, level = self._options
                graph = defaults.graph_with(names)
                report = optimize_for(graph, self.device.caps, level)
                device = self.device
                made = Model(graph, device, strict, folder, report, limit, (), priority, level)
                self._variants[names] = made
            return self._variants[names]

    def run(
        self,
        inputs: Mapping[str, Any] | Any,
        outputs: Sequence[str] | None = None,
        device_outputs: bool = False,
        *,
        donate: Collection[str] = (),
        state: State | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Runs the model: `submit` and `wait`, on this thread.

        Args:
            inputs: An array (or DeviceTensor) per input name, a list for a sequence, a dict for a
                map; for a model with one input, the array alone. Lossless casts are made (int32 to
                int64, say), others refused; the floats of lists are rounded. A DeviceTensor is
                read where it lies.
            outputs: The outputs wanted; all by default, but for those that a state holds.
            device_outputs: Whether results stay on the device, as DeviceTensors.
            donate: Names of inputs, each a DeviceTensor, whose memory the run may use up. An
                output that is computed in the place of one takes it over; with
                `device_outputs` nothing is copied then. The tensors cannot be used again.
            state: Inputs that the run before left on the device. It takes over their outputs.
            timeout: Seconds after which the run is given up; None for as long as it takes. What it
                has on the device ends between two launches, as by `Run.cancel`. With `donate` or
                `state` that is waited for, so that the tensors can be used again.

        Returns:
            An ndarray or DeviceTensor per output name, a list for a sequence, a dict for a map.

        Raises:
            InputError: An input is missing, unknown, or of a wrong dtype or value.
            ShapeError: An input has a wrong rank or dim.
            OutOfMemoryError: The device has no room for these shapes; the model stays usable.
            DeviceError: The driver fails, or does not work in this fork; the same holds. What a
                tensor that was donated, or a state, has in it is then undefined.
            RunTimeoutError: It was not done by `timeout`.
            ClrtError: Another thread closed the model.
        """
        model = self._given(inputs)
        request = RunRequest.of(model._signature, inputs, outputs, device_outputs, donate, state)
        if timeout is not None:
            return model._start(request, in_worker=True).wait_or_stop(timeout)
        try:
            results = model._runner.run(request.feeds, request.wanted, request.donated)
            return request.for_user(results)
        except ClrtError:
            raise
        except BaseException:  # of a signal's handler, perhaps when the run was done
            request.take_back()
            raise

    def _start(self, request: RunRequest, in_worker: bool = False) -> Run:
        """A request on its way; in a worker nothing of it is done on this thread."""
        args = request.feeds, request.wanted, request.donated
        return Run(*self._runner.submit(*args, in_worker=in_worker), request)

    async def run_async(
        self,
        inputs: Mapping[str, Any] | Any,
        outputs: Sequence[str] | None = None,
        device_outputs: bool = False,
        *,
        state: State | None = None,
        donate: Collection[str] = (),
    ) -> dict[str, Any]:
        """Runs the model while the event loop goes on: plans, kernels and waits are a worker's.

        A task that is cancelled, by `asyncio.wait_for` for one, ends the run between two launches.

        Args:
            inputs: As for `run`; arrays stay as they are until the run is done.
            outputs: As for `run`.
            device_outputs: As for `run`.
            state: As for `run`.
            donate: As for `run`.

        Raises:
            ClrtError: As `run`.
        """
        model = self._given(inputs)
        request = RunRequest.of(model._signature, inputs, outputs, device_outputs, donate, state)
        return await model._start(request, in_worker=True)

    def submit(
        self,
        inputs: Mapping[str, Any] | Any,
        outputs: Sequence[str] | None = None,
        device_outputs: bool = False,
        *,
        donate: Collection[str] = (),
    ) -> Run:
        """Starts a run, and returns while it is on its way.

        Two runs of a model can be on their way at once, each with an arena of its own; a third
        waits for one of them.

        Args:
            inputs: As for `run`; arrays stay as they are until the run is done.
            outputs: As for `run`.
            device_outputs: As for `run`.
            donate: As for `run`.

        Raises:
            ClrtError: What can be said before the device begins; the rest comes from `Run.wait`.
        """
        model = self._given(inputs)
        request = RunRequest.of(model._signature, inputs, outputs, device_outputs, donate)
        return model._start(request)

    def new_state(self, pairs: Mapping[str, str], values: Mapping[str, Any]) -> State:
        """Tensors on the device for inputs that outputs of each run take the place of.

        Args:
            pairs: Names of inputs, and of the output that each is in the next run.
            values: The first value of each input: an array, or a shape for zeros.

        Raises:
            InputError, ShapeError: A name or a value does not fit.
        """
        self._signature.wanted(list(pairs.values()))
        for name in pairs:
            if name not in values:
                raise InputError(
                    f"No value for input '{name}' of the state; pass an array or a shape."
                )
        return State(pairs, {n: self._signature.on_device(n, values[n]) for n in pairs})

    def feeds(self, inputs: Mapping[str, Any] | Any) -> dict[str, RuntimeValue]:
        """The inputs of a run as `run` takes them in: by name, checked, in the input's dtype.

        Raises:
            InputError, ShapeError: As `run`.
        """
        return self._given(inputs)._signature.feeds(inputs)

    def profile(self, inputs: Mapping[str, Any] | Any, repeat: int = 20) -> Profile:
        """Where the time of a run goes: print it, or save it as a trace or an HTML page.

        Args:
            inputs: As `run` takes them.
            repeat: How often to run under the profiler, and as often without.

        Raises:
            InputError: As `run`, or `repeat` is less than 1.
        """
        if not isinstance(repeat, int | np.integer) or repeat < 1:
            raise InputError(f"repeat is {repeat!r}; a profile needs a number of runs, 1 or more.")
        from clrt.runtime.profiling.collect import collect  # a first result need not wait for it

        model = self._given(inputs)
        feeds = model._signature.feeds(inputs)

        def once(recorder: Recorder | None) -> None:
            model._runner.run(feeds, {s.name: False for s in self.outputs}, recorder=recorder)

        shapes = shapes_of(feeds)
        name = self._graph.name
        return collect(self._session, once, name, shapes, repeat)

    def warmup(
        self,
        shapes: Iterable[Mapping[str, Sequence[int]]] | Mapping[str, Sequence[int]] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Plans and runs each set of input shapes once on zeros, so that later runs are fast.

        Args:
            shapes: None takes those that a compiled model was made for. It holds no plans, which
                depend on the device and take milliseconds.
            progress: Called with (done, total) after each.

        Raises:
            InputError, ShapeError, OutOfMemoryError: As `run`.
        """
        groups = self.shapes if shapes is None else shapes
        if isinstance(groups, Mapping) or not isinstance(groups, Iterable):
            groups = [groups]
        todo = [self._shapes(group) for group in groups]
        for done, group in enumerate(todo, start=1):
            self.run(self.zeros(group))
            if progress is not None:
                progress(done, len(todo))

    def save_programs(self) -> None:
        """Writes the programs compiled so far to the cache folder, now and not at exit.

        Raises:
            InputError: The folder cannot be written, or is open to other users.
            DeviceError: The driver does not work in this fork.
        """
        self._session.programs.save()

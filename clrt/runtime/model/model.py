"""`load` and `Model`: loads a model for a device, and runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import numpy as np

from clrt.errors import ClrtError, InputError
from clrt.formats.checksum import DigestCheck
from clrt.formats.safetensors import SafetensorsHeader
from clrt.ir.graph import Graph
from clrt.ir.runtime_values import RuntimeValue, shapes_of
from clrt.models.compiled_file import open_compiled
from clrt.models.sources import is_compiled
from clrt.runtime.execution.request import RunRequest
from clrt.runtime.execution.run import Run
from clrt.runtime.execution.runner import Runner
from clrt.runtime.execution.signature import Signature
from clrt.runtime.execution.state import State
from clrt.runtime.model.executable_store import (
    Recording,
    find_executable,
    is_storable,
    key_for,
    save_at_exit,
    save_now,
)
from clrt.runtime.model.graph_recipe import GraphRecipe
from clrt.runtime.model.model_key import model_content
from clrt.runtime.model.pickling import PicklesBySource, recording
from clrt.runtime.model.planned_model import PlannedModel
from clrt.runtime.opencl.devices import DeviceInfo, choose_device, start_drivers
from clrt.runtime.opencl.session import DeviceSession, session_for
from clrt.runtime.opencl.sub_devices import with_cores
from clrt.runtime.opencl.tiers import uses_tiers
from clrt.runtime.selftest.gate import ensure_right
from clrt.util import env_vars
from clrt.util.compile_progress import Progress
from clrt.util.files import expanded
from clrt.util.formatting import parse_bytes
from clrt.util.gc_control import gc_young_only

if TYPE_CHECKING:
    from clrt.models.sources import Source
    from clrt.passes.driver import PassReport
    from clrt.runtime.executables.executable import Executable
    from clrt.runtime.execution.profiler import Recorder
    from clrt.runtime.model.executable_store import ExecutableKey, ModelContent
    from clrt.runtime.profiling.profile import Profile

_PRIORITIES = ("normal", "background")
_MODELS: WeakSet[Model] = WeakSet()


def _after_fork_in_child() -> None:
    for model in _MODELS:
        model._runner.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class _Options(NamedTuple):
    """Options of `load`, which has checked them."""

    device: DeviceInfo
    strict: bool | None
    folder: Path | None
    memory_limit: int | None
    priority: str
    optimize_level: int
    tiers: bool | None
    on_progress: Progress | None


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
    tiers: bool | None = None,
    on_progress: Progress | None = None,
) -> Model:
    """Loads a model and optimises it for a device.

    Args:
        source: An ONNX file, its bytes, an `onnx.ModelProto`, a Hugging Face folder, or a compiled
            model from `clrt-convert`. Of a folder, `onnx/model.onnx` or `model.onnx` is loaded if
            present; else the graph is built from `config.json` and the safetensors weights (bert,
            roberta, distilbert, mpnet, …). `~` at the start of a path is the home folder.
        device: "auto", "cpu", "gpu", part of a platform or device name, or an element of
            `clrt.devices()` or its index; None reads CLRT_DEVICE, and defaults to "auto".
        strict: Whether a node without a fitting kernel is an error instead of running on the host;
            None reads CLRT_STRICT.
        cache_dir: Folder for compiled programs; None reads CLRT_CACHE_DIR, and defaults to the
            user's cache.
        optimize_level: 0 to run no graph passes, 2 to run all graph passes. Ignored for a compiled
            model, whose graph is already optimised.
        memory_limit: Maximum memory that the model may allocate on the device, in bytes or as a
            string such as "2GiB": a run that needs more is refused before it allocates anything.
            None for the device's memory.
        priority: "background" for a model whose runs give way to the runs of all other models on
            the device, with little work in the queue at a time; else "normal".
        cores: Number of cores that a CPU device computes on; if negative, the number of cores to
            leave free; None for all. Only models with the same number share tensors on the device.
        tiers: Whether programs that are in no cache are compiled without optimization first, and
            optimized in the background: the first result comes sooner, and runs are several times
            slower until then. The last bits of results may change between two runs. False compiles
            optimized programs before the first run; None reads CLRT_TIERS, which by default means
            True on CPUs whose compiler was measured.
        on_progress: Called in another thread with (done, total) programs that are compiled in the
            background, if that takes more than 1 s; None for no calls.

    Raises:
        ModelError: The file is missing, damaged or not ONNX.
        UnsupportedError: The model has nodes that clrt does not support; all are named.
        DeviceError: The requested device is absent, or its self-test found wrong results.
        InputError: An option has an invalid value, or the source is of another type.
    """
    if optimize_level not in (0, 1, 2):
        raise InputError(f"optimize_level is {optimize_level!r}; expected 0, 1 or 2.")
    if priority not in _PRIORITIES:
        raise InputError(f"priority is {priority!r}; expected 'normal' or 'background'.")
    if isinstance(source, (str, Path)):
        source = expanded(source)
    start_drivers()  # they load while the model's files are read
    is_found = isinstance(source, GraphRecipe) and source.lookup is not None
    content = None if is_found else model_content(source)
    info = choose_device(device)
    if cores is not None:
        info = with_cores(info, cores)
    limit = None if memory_limit is None else parse_bytes(memory_limit)
    folder = None if cache_dir is None else expanded(cache_dir)
    level = 2 if isinstance(source, SafetensorsHeader) or is_compiled(source) else optimize_level
    programs = session_for(info, folder).programs.folder
    key, found = _look_up(source, content, info, level, programs)
    options = _Options(info, strict, folder, limit, priority, level, tiers, on_progress)
    if key is None or found is None:
        from clrt.runtime.model.open_model import open_model  # imports ops and passes

        opened = open_model(source, info.caps, level)
        model = _new_model(opened.graph, options, opened.report, opened.shapes)
        model._runner.check = opened.check
        if key is not None and is_storable(model._runner):
            recording = Recording(key, model._graph, model._runner, info.caps, opened.shapes)
            if isinstance(source, GraphRecipe):
                recording.texts = source.texts
            save_at_exit(recording, model)
        return model
    return _stored_model(key, found, options, source)


def _look_up(
    source: Source | SafetensorsHeader,
    content: ModelContent | None,
    info: DeviceInfo,
    level: int,
    programs: Path,
) -> tuple[ExecutableKey | None, Executable | None]:
    """Returns the key of a model's executable, and the executable; None for what there is not.

    Args:
        source: Source of the model, as for `load`.
        content: Files and digest of the model; None if it has no executable.
        level: `optimize_level` of `load`.
        programs: Folder of compiled programs.
    """
    if isinstance(source, GraphRecipe) and source.lookup is not None:
        lookup, source.lookup = source.lookup, None
        return lookup
    key = None if content is None else key_for(content, info.caps, level, programs)
    return key, None if key is None else find_executable(key)


def stored_texts(
    recipe: GraphRecipe,
    device: str | int | DeviceInfo | None,
    cache_dir: str | Path | None,
) -> Mapping[str, str]:
    """Returns the texts that are stored beside the plans of a recipe; {} if there are no plans.

    Args:
        recipe: A recipe, which `load` is called with next, with the same device and folder.
        device: As for `load`.
        cache_dir: As for `load`.
    """
    content = model_content(recipe)  # computed while the drivers load
    info = choose_device(device)
    folder = None if cache_dir is None else expanded(cache_dir)
    recipe.lookup = _look_up(recipe, content, info, 2, session_for(info, folder).programs.folder)
    found = recipe.lookup[1]
    return {} if found is None else found.texts


def _new_model(
    graph: Graph,
    options: _Options,
    report: PassReport | None,
    shapes: Sequence[Mapping[str, Sequence[int]]],
) -> Model:
    """Returns a model of a graph.

    Args:
        options: As `load` has checked them.
        report: Matches and misses of the graph passes; None for a compiled model.
        shapes: Sets of input shapes that a compiled model was made for.
    """
    info, strict, folder, limit, priority, level, tiers, on_progress = options
    common = strict, folder, report, limit, shapes, priority, level
    return Model(graph, info, *common, tiers, on_progress)


def _stored_model(
    key: ExecutableKey,
    found: Executable,
    options: _Options,
    source: Source | SafetensorsHeader,
) -> Model:
    """Returns a model that runs by the plans of an earlier process.

    Args:
        key: Identifies the executable.
        found: The executable.
        options: As for `_new_model`.
        source: Source of the model, read again if a run needs another plan.
    """
    model = _new_model(found.graph, options, None, found.shapes)
    runner = model._runner
    runner.play(found)
    checks = [found.check]
    if isinstance(source, SafetensorsHeader) or is_compiled(source):
        header = source if isinstance(source, SafetensorsHeader) else open_compiled(Path(source))
        checks.append(DigestCheck(header))
    runner.check = partial(_check_all, checks)

    def read() -> Graph:
        from clrt.runtime.model.open_model import open_model  # imports ops and passes

        opened = open_model(source, model.device.caps, options.optimize_level)
        if opened.check is not None:
            opened.check()
        model._report = opened.report
        return opened.graph

    found.graph.read = read
    recording = Recording(key, found.graph, runner, model.device.caps, found.shapes, found)
    save_at_exit(recording, model)
    return model


def _check_all(checks: Sequence[Callable[[], None]]) -> None:
    for check in checks:
        check()


def _optimise(device: DeviceInfo, level: int, graph: Graph) -> PassReport:
    """Optimises a graph for a device, in place."""
    from clrt.passes.device_pipeline import optimize_for  # imports passes and ops

    return optimize_for(graph, device.caps, level)


class Model(PlannedModel, PicklesBySource):
    """A model on a device. Use `load` to create one.

    `run` may be called from several threads. As a context manager, the model frees its device
    memory at the end. A model can be copied and pickled. The pickle has the model's path or, if the
    model was not loaded from a file, its graph.

    Attributes:
        inputs: Description of each input of `run`, in order.
        outputs: Description of each output of `run`, in order.
        overridable: Names of optional inputs: initializers that the ONNX file also lists as inputs.
            The first run that passes some of these inputs optimises the model for that selection.
        device: The device that the model runs on.
        shapes: Sets of input shapes that a compiled model was made for; () for other models.
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
        tiers: bool | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        self.shapes = tuple(shapes)
        self.device = device
        self._report = report
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
        self._progress = tiers, on_progress
        rewrite = partial(_optimise, device, optimize_level)
        background = priority == "background"
        self._runner = Runner(graph, rewrite, self._session, strict, memory_limit, background)
        for each in self._all_tiers:
            each.enabled = uses_tiers(device.caps, tiers)
            each.on_progress = on_progress
        _MODELS.add(self)

    @property
    def session(self) -> DeviceSession:
        """The device's session, which creates tensors that runs read without a copy."""
        return self._session

    @property
    def report(self) -> PassReport | None:
        """Matches and misses of the graph passes; None for a compiled model."""
        self._runner.open()
        return self._report

    @property
    def host_nodes(self) -> dict[str, str]:
        """Why nodes run on the host, by node name; only nodes in plans made so far are listed."""
        return self._runner.planner.host_nodes

    @property
    def properties(self) -> Mapping[str, str]:
        """Metadata of the ONNX file: keys and values that the exporter wrote."""
        return self._graph.properties

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        takes = ", ".join(map(str, self.inputs))
        return f"<clrt.Model ({takes}) on {self.device}>"

    def close(self) -> None:
        """Frees the model's device memory; the model cannot run afterwards.

        Runs in other threads end with an error once their enqueued launches are done, usually
        within a tenth of a second. If a run takes longer than a second, its memory is freed when
        it ends.
        """
        self._runner.close()
        for model in tuple(self._variants.values()):
            model.close()

    def trim(self) -> None:
        """Frees the model's arenas and plans, and pooled buffers; the weights stay on the device.

        Waits for runs of other threads. The next run plans and allocates again.

        Raises:
            InputError: The model is closed.
        """
        self._runner.trim()
        for model in tuple(self._variants.values()):
            model.trim()

    def _model_for(self, inputs: Mapping[str, Any] | Any) -> Model:
        """Returns the model to run for inputs: a variant if they include overridable inputs.

        Each new selection of overridable inputs makes a variant, which is optimised and cached.

        Args:
            inputs: Inputs of `run` by name, or the only input itself.
        """
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
                report = _optimise(self.device, level, graph)
                device = self.device
                options = strict, folder, report, limit, (), priority, level
                variant = Model(graph, device, *options, *self._progress)
                self._variants[names] = variant
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
        """Runs the model in the calling thread.

        Args:
            inputs: An array (or DeviceTensor) per input name, a list for a sequence, a dict for a
                map; for a model with one input, the array alone. Lossless casts are applied (int32
                to int64, say), other casts are errors; the floats of lists are rounded. A
                DeviceTensor is read without a copy.
            outputs: Names of the outputs to compute; None for all outputs, except outputs that
                `state` receives.
            device_outputs: Whether results stay on the device, as DeviceTensors.
            donate: Names of inputs, each a DeviceTensor, whose memory the run may reuse; the
                tensors cannot be used again. An output that is computed in place of a donated input
                takes over the input's memory; with `device_outputs` it is then not copied.
            state: Device-resident inputs, replaced by outputs of this run; None for none.
            timeout: Seconds after which the run is cancelled, between two launches as by
                `Run.cancel`; None for no limit. With `donate` or `state` the call also waits for
                the enqueued launches, so that the tensors can be used again.

        Returns:
            An ndarray or DeviceTensor per output name, a list for a sequence, a dict for a map.

        Raises:
            InputError: An input is missing, unknown, or of a wrong dtype or value.
            ShapeError: An input has a wrong rank or dim.
            OutOfMemoryError: The run does not fit on the device; the model stays usable.
            DeviceError: The driver fails, or does not work in this fork; the model stays usable.
                Donated tensors and states then have undefined contents.
            RunTimeoutError: The run was not done after `timeout` seconds.
            ClrtError: Another thread closed the model.
        """
        model = self._model_for(inputs)
        request = RunRequest.of(model._signature, inputs, outputs, device_outputs, donate, state)
        if timeout is not None:
            return model._start(request, in_worker=True).wait_or_cancel(timeout)
        try:
            results = model._runner.run(request.feeds, request.wanted, request.donated)
            return request.for_user(results)
        except ClrtError:
            raise
        except BaseException:  # raised by a signal handler, perhaps after the run
            request.take_back()
            raise

    def _start(self, request: RunRequest, in_worker: bool = False) -> Run:
        """Starts an asynchronous run.

        Args:
            request: Checked arguments of the run.
            in_worker: Whether a worker thread does all of the run's work; else this thread
                enqueues short runs.
        """
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
        """Runs the model without blocking the event loop: a worker thread plans, runs and waits.

        Cancelling the task, as `asyncio.wait_for` does, ends the run between two launches.

        Args:
            inputs: An array or DeviceTensor per input name, as for `run`; do not change the arrays
                until the run is done.
            outputs: Names of the outputs to compute; None for all outputs, except outputs that
                `state` receives.
            device_outputs: Whether results stay on the device, as DeviceTensors.
            state: Device-resident inputs, replaced by outputs of this run; None for none.
            donate: Names of inputs, each a DeviceTensor, whose memory the run may reuse.

        Returns:
            An ndarray or DeviceTensor per output name, a list for a sequence, a dict for a map.

        Raises:
            InputError: An input is missing, unknown, or of a wrong dtype, shape or value.
            ClrtError: The run fails, for example out of memory, or the model was closed.
        """
        model = self._model_for(inputs)
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
        """Starts an asynchronous run.

        Two runs of a model can be in flight at once, each with its own arena. A third run waits
        until one of these has ended.

        Args:
            inputs: An array or DeviceTensor per input name, as for `run`; do not change the arrays
                until the run is done.
            outputs: Names of the outputs to compute; None for all.
            device_outputs: Whether results stay on the device, as DeviceTensors.
            donate: Names of inputs, each a DeviceTensor, whose memory the run may reuse.

        Raises:
            InputError: An input is missing, unknown, or of a wrong dtype or shape.
            ClrtError: The run fails before the device begins; `Run.wait` raises later errors.
        """
        model = self._model_for(inputs)
        request = RunRequest.of(model._signature, inputs, outputs, device_outputs, donate)
        return model._start(request)

    def new_state(self, pairs: Mapping[str, str], values: Mapping[str, Any]) -> State:
        """Creates a state: device-resident inputs that each run replaces by some of its outputs.

        Args:
            pairs: By input name, the name of the output that replaces the input after a run.
            values: Initial value by input name: an array, or a shape for zeros.

        Raises:
            InputError, ShapeError: A name is unknown, or a value does not match its input.
        """
        self._signature.wanted(list(pairs.values()))
        for name in pairs:
            if name not in values:
                raise InputError(
                    f"No value for input '{name}' of the state; pass an array or a shape."
                )
        return State(pairs, {n: self._signature.on_device(n, values[n]) for n in pairs})

    def feeds(self, inputs: Mapping[str, Any] | Any) -> dict[str, RuntimeValue]:
        """Checks inputs as `run` does, and returns them by name in the dtypes of the model.

        Args:
            inputs: An array or DeviceTensor per input name; or the only input itself.

        Raises:
            InputError: An input is missing, unknown, or of a wrong dtype or value.
        """
        return self._model_for(inputs)._signature.feeds(inputs)

    def profile(self, inputs: Mapping[str, Any] | Any, repeat: int = 20) -> Profile:
        """Measures the time of each kernel in runs of the model.

        Args:
            inputs: An array or DeviceTensor per input name, as for `run`.
            repeat: Number of runs with the profiler; the model also runs as often without it.

        Returns:
            A profile, which prints as tables, and can be saved as a trace or an HTML page.

        Raises:
            InputError: An input does not match the model, or `repeat` is less than 1.
        """
        if not isinstance(repeat, int | np.integer) or repeat < 1:
            raise InputError(f"repeat is {repeat!r}; expected a number of runs, 1 or more.")
        from clrt.runtime.profiling.collect import collect  # imported late to speed up the start

        model = self._model_for(inputs)
        model._runner.open()
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

        Returns when all programs are optimized (see `tiers` of `clrt.load`).

        Args:
            shapes: Shape of each input by name, or several such dicts; None for the shapes that a
                compiled model was made for. (A compiled model contains no plans, which depend on
                the device and take milliseconds.)
            progress: Called with (done, total) after each dict of shapes.

        Raises:
            InputError: An input is missing or unknown, or a shape does not match the model.
            OutOfMemoryError: A run does not fit on the device.
        """
        groups = self.shapes if shapes is None else shapes
        if isinstance(groups, Mapping) or not isinstance(groups, Iterable):
            groups = [groups]
        todo = [self._shapes(group) for group in groups]
        tiers = self._all_tiers
        enabled = [each.enabled for each in tiers]
        try:
            for each in tiers:
                each.enabled = False
            for done, group in enumerate(todo, start=1):
                self.run(self.zeros(group))
                if progress is not None:
                    progress(done, len(todo))
        finally:
            for each, was_enabled in zip(tiers, enabled, strict=True):
                each.enabled = was_enabled

    def save_programs(self) -> None:
        """Writes the programs compiled, and the plans made so far, to the cache now, not at exit.

        Raises:
            InputError: The folder cannot be written, or is open to other users.
            DeviceError: The driver does not work in this fork.
        """
        for programs in self._session.caches:
            programs.save()
        save_now(self._graph)

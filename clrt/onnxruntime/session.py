"""`InferenceSession`: loads and runs a model with ONNX Runtime's interface."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from clrt.errors import ClrtError, DeviceError, ShapeError, warn_user
from clrt.onnxruntime.binding import IOBinding
from clrt.onnxruntime.exceptions import (
    InvalidArgument,
    RuntimeException,
    StatusError,
    WrongType,
    of_load,
    of_run,
)
from clrt.onnxruntime.feeds import Feeds
from clrt.onnxruntime.loaded_model import LoadedFile
from clrt.onnxruntime.options import LOG, RunOptions, SessionOptions
from clrt.onnxruntime.providers import Providers, choose
from clrt.onnxruntime.session_info import SessionInfo
from clrt.onnxruntime.trace import SessionTrace
from clrt.onnxruntime.values import OrtDevice, OrtValue, OrtValueVector
from clrt.runtime.model.model import Model
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.sub_devices import with_cores

# Threads per session for `run_async`.
_ASYNC_THREADS = 2
AsyncCallback = Callable[[list[Any], Any, str], object]


class InferenceSession(SessionInfo):
    """A model with ONNX Runtime's interface.

    Args:
        path_or_bytes: An ONNX file or its bytes.
        sess_options: Options for loading and running; None for the defaults. `SessionOptions` says
            which options have an effect.
        providers: Names of execution providers, or (name, options), preferred first. None for the
            providers in `sess_options`, or the device that `clrt.load` chooses.
        provider_options: Options of each provider, if `providers` are names alone; None for none.
        kwargs: Other arguments of ONNX Runtime's class, which are ignored.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidArgument: There is no file, or it is not a model.
        InvalidGraph, Fail: The model is invalid.
        NotImplemented: The model needs a feature that clrt lacks.
        EPFail: There is no device.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Providers = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        options = SessionOptions() if sess_options is None else sess_options
        if not isinstance(options, SessionOptions):
            raise WrongType(f"sess_options is {options!r}; expected a SessionOptions.")
        for name in kwargs:
            LOG.debug("The argument %s of InferenceSession is ignored.", name)
        options.log_ignored()
        self._source = path_or_bytes
        # Optimum and others read this attribute.
        is_path = isinstance(path_or_bytes, (str, os.PathLike))
        self._model_path = os.fspath(path_or_bytes) if is_path else None
        self._options = options
        self._trace = (
            SessionTrace(options.profile_file_prefix) if options.enable_profiling else None
        )
        self._threads: ThreadPoolExecutor | None = None
        if providers is not None and options.given.pick is not None:
            warn_user("Providers were set in the SessionOptions, too; those of the session count.")
        if providers is None and options.given.providers and options.given.pick is None:
            providers = list(options.given.providers.items())
        self._load(providers, provider_options)

    def _load(
        self, providers: Providers, provider_options: Sequence[Mapping[Any, Any]] | None
    ) -> None:
        """Chooses the device, loads the model on it, and sets the session's inputs and outputs.

        Args:
            providers: Names of providers, or (name, options), preferred first; None for the
                providers or device in the session options.
            provider_options: Options of each provider, if `providers` are names alone; None for
                none.
        """
        start_ns = time.perf_counter_ns()
        try:
            pick = self._options.given.pick if providers is None else None
            self._choice = choose(providers, provider_options) if pick is None else pick()
            device = _restrict_cores(self._choice.device, self._options.intra_op_num_threads)
        except StatusError:
            raise
        except ClrtError as error:
            raise of_load(error) from error
        self._loaded = loaded = LoadedFile(self._source, self._options, device)
        self._feeds = Feeds(loaded.inputs, loaded.overridable, device)
        self._output_names = [arg.name for arg in self._loaded.outputs]
        self._output_types = {arg.name: arg.type for arg in self._loaded.outputs}
        LOG.info("The model runs on %s, %s units.", device, device.caps.compute_units)
        if self._trace is not None:
            self._trace.add("session_initialization", start_ns)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Runs the model.

        Args:
            output_names: Names of the outputs to return, in this order; None for all.
            input_feed: An array or OrtValue for each input; a list for a sequence, a dict for a
                map. Dtypes must match the model's: arrays are not converted.
            run_options: Options whose `terminate`, set in another thread, cancels the run; None for
                none.

        Returns:
            An array for each output, a list for a sequence, a dict for a map.

        Raises:
            InvalidArgument: A name, type, rank, size or value does not match the model.
            Fail: The run was cancelled, or shapes within the model do not match.
            RuntimeException: The run does not fit in memory, or an input has an unknown type.
            EPFail: The device fails.
        """
        names = self._wanted(output_names)
        results = self._run(self._feeds.of(input_feed), names, run_options)
        return [results[name] for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: AsyncCallback,
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Runs the model in another thread.

        Args:
            output_names: Names of the outputs to return, in this order; None for all.
            input_feed: An array or OrtValue for each input; a list for a sequence, a dict for a
                map.
            callback: Called in the other thread with (list of outputs, `user_data`, message of the
                error). After an error the list is empty; else the message is "".
            user_data: Any object, passed to `callback`.
            run_options: Options whose `terminate`, set in another thread, cancels the run; None for
                none.

        Raises:
            InvalidArgument: An input is missing or unknown. All other errors go to `callback`.
        """
        self._feeds.check_names(input_feed)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_ASYNC_THREADS, "clrt-run-async")

        def run() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except ClrtError as raised:
                results, error = [], str(raised)
            callback(results, user_data, error)

        self._threads.submit(run)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Runs the model on OrtValues, and returns the outputs as OrtValues in host memory.

        Args:
            output_names: Names of the outputs to return, in this order; None for all.
            input_dict_ort_values: An OrtValue for each input, by name.
            run_options: Options whose `terminate`, set in another thread, cancels the run; None for
                none.

        Raises:
            StatusError: An input does not match the model, or the run fails.
        """
        names = self._wanted(output_names)
        results = self._run(self._feeds.of(input_dict_ort_values), names, run_options)
        return [self.value(name, results[name]) for name in names]

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[OrtDevice],
    ) -> None:
        """Runs the model on OrtValues, and appends the outputs to a vector.

        Args:
            run_options: Options whose `terminate`, set in another thread, cancels the run; None for
                none.
            feed_names: Names of the inputs, in the order of `feeds`.
            feeds: OrtValue of each input.
            fetch_names: Names of the outputs to compute.
            fetches: Receives the outputs, in host memory.
            fetch_devices: Ignored.
        """
        pairs = dict(zip(feed_names, feeds, strict=True))
        fetches.extend(self.run_with_ort_values(fetch_names, pairs, run_options))

    def io_binding(self) -> IOBinding:
        """Creates an empty binding of this session's inputs and outputs to memory."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Runs the model on the inputs of a binding, and stores the outputs in bound memory.

        Args:
            iobinding: A binding that `io_binding` of this session has created.
            run_options: Options whose `terminate`, set in another thread, cancels the run; None for
                none.

        Raises:
            InvalidArgument: The binding belongs to another session.
            RuntimeException: The run fails.
        """
        if iobinding.session is not self:
            raise InvalidArgument("IOBinding must be used with the session that created it.")
        try:
            names, on_device = iobinding.wanted()
            feeds = self._feeds.of(iobinding.inputs)
            results = self._run(feeds, names, run_options, on_device)
            iobinding.take(results)
        except ClrtError as error:
            raise RuntimeException(f"Error in execution: {error}") from error

    def _wanted(self, output_names: Sequence[str] | None) -> Sequence[str]:
        """Returns the names of the outputs to compute, all by default; raises if one is unknown."""
        if not output_names:
            return self._output_names
        if isinstance(output_names, str):
            raise WrongType(f"The names of outputs must be a list, not {output_names!r}.")
        for name in output_names:
            if name not in self._output_types:
                raise InvalidArgument(f"Invalid output name:{name}")
        return output_names

    def _run(
        self,
        feeds: dict[str, Any],
        names: Sequence[str],
        run_options: RunOptions | None,
        on_device: bool = False,
    ) -> dict[str, Any]:
        """Computes outputs of the model, and returns them by name.

        Args:
            feeds: Converted inputs by name.
            names: Names of the outputs to compute.
            run_options: Options whose `terminate` cancels the run; None for none.
            on_device: Whether outputs are device tensors; else they are on the host.
        """
        overridden = self._feeds.overridden(feeds)
        loaded, trace = self._loaded, self._trace
        start_ns = time.perf_counter_ns() if trace is not None else 0
        while True:
            model = loaded.model_for(overridden) if overridden else loaded.model
            try:
                results = _results(model, feeds, names, run_options, on_device)
            except ShapeError as error:
                # Sizes that contradict the names of dims are no error in ONNX Runtime.
                if self._feeds.disagree(feeds) and loaded.separate_dims(model):
                    continue
                raise of_run(error) from error
            except ClrtError as error:
                raise of_run(error) from error
            if trace is not None:
                trace.add_run(start_ns, feeds)
            return results

    def value(self, name: str, held: Any, device: OrtDevice | None = None) -> OrtValue:
        """Wraps an output in an OrtValue.

        Args:
            name: Name of the output, which determines the type of the OrtValue.
            held: Value of the output: an array, device tensor, list, dict or None.
            device: Location of the output; None for host memory.
        """
        type_ = self._output_types[name]
        return OrtValue(held, type_) if device is None else OrtValue(held, type_, device)

    def set_providers(
        self,
        providers: Providers = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
    ) -> None:
        """Loads the model again on the device of other execution providers.

        Args:
            providers: Names of providers, or (name, options), preferred first. None for the
                providers or device in the session options, or the device that `clrt.load` chooses.
            provider_options: Options of each provider, if `providers` are names alone; None for
                none.
        """
        before = self._loaded
        self._load(providers, provider_options)
        before.close()


def _restrict_cores(device: DeviceInfo, cores: int) -> DeviceInfo:
    """Returns a device restricted to a number of cores.

    Returns the device itself if `cores` is less than 1, or if the device cannot be partitioned.
    """
    if cores < 1:
        return device
    try:
        return with_cores(device, cores)
    except DeviceError as error:
        LOG.debug("SessionOptions.intra_op_num_threads = %d is ignored: %s", cores, error)
        return device


def _results(
    model: Model,
    feeds: dict[str, Any],
    names: Sequence[str],
    run_options: RunOptions | None,
    on_device: bool,
) -> dict[str, Any]:
    """Runs a model and returns its outputs by name.

    Args:
        model: The model.
        feeds: Converted inputs by name.
        names: Names of the outputs to compute.
        run_options: Options whose `terminate` cancels the run; None for none.
        on_device: Whether outputs are device tensors; else they are on the host.
    """
    if run_options is None:
        return model.run(feeds, names, on_device)
    if not isinstance(run_options, RunOptions):
        raise WrongType(f"run_options is {run_options!r}; expected a RunOptions.")
    return run_options.result(lambda: model.submit(feeds, names, on_device))

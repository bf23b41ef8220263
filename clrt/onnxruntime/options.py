"""Options of sessions and runs: all of ONNX Runtime's options are accepted, some have an effect."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from clrt.errors import CancelledError
from clrt.ir.op import Array
from clrt.onnxruntime import exceptions
from clrt.onnxruntime.ep_devices import (
    OrtEpDevice,
    choice_by_delegate,
    choice_by_policy,
    choice_of,
)
from clrt.onnxruntime.exceptions import Fail, RuntimeException, WrongType
from clrt.onnxruntime.providers import ProviderChoice
from clrt.onnxruntime.values import OrtValue
from clrt.runtime.execution.run import Run

LOG = logging.getLogger("clrt.onnxruntime")

# Message of a run that `RunOptions.terminate` cancels, as in ONNX Runtime.
TERMINATED = "Exiting due to terminate flag being set to true."


class GraphOptimizationLevel(IntEnum):
    """Graph optimisation levels of ONNX Runtime: no passes, clean-up only, or all passes.

    EXTENDED, LAYOUT and ALL all run every pass.
    """

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether ONNX Runtime runs nodes in sequence or in parallel; without effect in clrt."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """Order in which ONNX Runtime runs nodes; without effect in clrt."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


def _as_int(value: Any) -> int | None:
    try:
        return operator.index(value)
    except TypeError:
        return None


_CASTS: Mapping[type, Callable[[Any], object]] = {bool: bool, int: _as_int}


class Settings:
    """Base of option classes: typed settings, declared as attributes, and string entries by key.

    It is an error to set an unknown attribute, or to set an attribute to a value of a wrong type.
    """

    _defaults: ClassVar[dict[str, Any]]
    _entries: dict[str, str]

    def __init_subclass__(cls) -> None:
        names = (n for n in cls.__annotations__ if not n.startswith("_"))
        inherited = getattr(cls, "_defaults", {})
        cls._defaults = {**inherited, **{name: getattr(cls, name) for name in names}}

    def __init__(self) -> None:
        object.__setattr__(self, "_entries", {})

    def __setattr__(self, name: str, value: object) -> None:
        kind = type(self).__name__
        if name not in self._defaults:
            raise AttributeError(f"'{kind}' object has no attribute '{name}'")
        expected = type(self._defaults[name])
        converted = _CASTS[expected](value) if expected in _CASTS else value
        if not isinstance(converted, expected):
            raise WrongType(f"{kind}.{name} must be of type {expected.__name__}; it is {value!r}.")
        object.__setattr__(self, name, converted)

    def changed(self) -> dict[str, object]:
        """Returns the settings that differ from their defaults, by name."""
        pairs = ((name, getattr(self, name)) for name in self._defaults)
        return {name: value for name, value in pairs if value != self._defaults[name]}

    def _add_entry(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise WrongType(f"An entry is text; {key!r}: {value!r} is not.")
        self._entries[key] = value

    def _entry(self, key: str) -> str:
        if key not in self._entries:
            kind = type(self).__name__
            raise RuntimeException(f"{kind} does not have configuration with key: {key}")
        return self._entries[key]


@dataclass
class OptionValues:
    """Values passed to the methods of a `SessionOptions`.

    Attributes:
        sizes: Sizes to use for symbolic dims, by name of the dim.
        denoted: Sizes to use for dims, by their denotation, such as "DATA_BATCH".
        initializers: Values that replace initializers, by name.
        providers: Options of execution providers by name.
        files: Contents of external data files, by the file name in the model.
        pick: Chooses device and providers; None if the program set neither devices nor a policy.
        is_load_cancelled: Whether loading raises `ModelLoadCanceled`.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    denoted: dict[str, int] = field(default_factory=dict)
    initializers: dict[str, OrtValue] = field(default_factory=dict)
    providers: dict[str, dict[str, str]] = field(default_factory=dict)
    files: dict[str, Array] = field(default_factory=dict)
    pick: Callable[[], ProviderChoice] | None = None
    is_load_cancelled: bool = False


class SessionOptions(Settings):
    """Options for loading and running a model.

    The options with an effect are `graph_optimization_level`, `intra_op_num_threads` on a CPU
    device, `optimized_model_filepath`, `enable_profiling` with `profile_file_prefix`, overrides of
    free dims, values of initializers, external data in memory, and providers. All other options
    are ignored, with a log message of level DEBUG.
    """

    _followed: ClassVar = frozenset(
        (
            "enable_profiling",
            "graph_optimization_level",
            "intra_op_num_threads",
            "optimized_model_filepath",
            "profile_file_prefix",
        )
    )

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True

    _given: OptionValues

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_given", OptionValues())

    @property
    def given(self) -> OptionValues:
        """Values passed to the `add_…` and `set_…` methods."""
        return self._given

    @property
    def optimize_level(self) -> int:
        """Optimisation level for `clrt.load`, 0 to 2."""
        return min(int(self.graph_optimization_level), 2)

    def log_ignored(self) -> None:
        """Logs, at level DEBUG, changed settings and configuration entries that have no effect."""
        for name, value in self.changed().items():
            if name not in self._followed:
                LOG.debug("SessionOptions.%s = %r is ignored: clrt decides it.", name, value)
        for key, value in self._entries.items():
            LOG.debug("The session's entry %s = %s is ignored.", key, value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Stores a configuration entry, which has no effect on sessions."""
        self._add_entry(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Returns the value of a configuration entry added before.

        Raises:
            RuntimeException: There is no entry with this key.
        """
        return self._entry(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fixes the size of a symbolic dim in all inputs.

        Args:
            name: Name of the symbolic dim in the ONNX file.
            size: Size to use for the dim.
        """
        self._given.sizes[name] = operator.index(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fixes the size of all dims with a denotation in all inputs.

        Args:
            denotation: Denotation of dims in the ONNX file, such as "DATA_BATCH".
            size: Size to use for these dims.
        """
        self._given.denoted[denotation] = operator.index(size)

    def add_initializer(self, name: str, value: OrtValue) -> None:
        """Replaces the value of one of the model's initializers, by its name.

        Raises:
            RuntimeException: `value` is not an OrtValue with a tensor.
        """
        if not isinstance(value, OrtValue) or not value.is_tensor():
            raise RuntimeException(f"The value of initializer '{name}' must be an OrtValue.")
        self._given.initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """Replaces the values of several of the model's initializers.

        Args:
            names: Names of the initializers.
            values: An OrtValue with a tensor for each name.

        Raises:
            RuntimeException: A value is not an OrtValue with a tensor, or the lists differ in
                length.
        """
        if len(names) != len(values):
            raise RuntimeException(f"There are {len(names)} names and {len(values)} values.")
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Passes the contents of external data files, which are then not read from disk.

        Args:
            names: Names of the files, as the model refers to them.
            buffers: Contents of each file: bytes, or an object with the buffer protocol.
            lengths: Number of bytes of each buffer that belong to the file.

        Raises:
            RuntimeException: The lists differ in length, or a buffer has fewer bytes.
            WrongType: An element of `buffers` does not support the buffer protocol.
        """
        if not len(names) == len(buffers) == len(lengths):
            raise RuntimeException(
                f"There are {len(names)} names, {len(buffers)} buffers and {len(lengths)} lengths."
            )
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            try:
                data = np.frombuffer(buffer, np.uint8)
            except (TypeError, ValueError, BufferError) as error:
                raise WrongType(f"The buffer of '{name}' has no bytes: {error}.") from error
            if not 0 <= operator.index(length) <= data.size:
                raise RuntimeException(f"'{name}' has {data.size} bytes, not {length}.")
            self._given.files[name] = data[: operator.index(length)]

    def values(self) -> dict[str, Array]:
        """Returns the arrays that replace initializers, by name."""
        return {name: value.numpy() for name, value in self._given.initializers.items()}

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Adds an execution provider for sessions that are created without `providers`.

        Args:
            name: Name of the provider, such as "CUDAExecutionProvider".
            options: Options of the provider.
        """
        self._given.providers[name] = dict(options)

    def add_provider_for_devices(
        self, devices: Sequence[OrtEpDevice], options: Mapping[str, str]
    ) -> None:
        """Selects the device of sessions that are created without `providers`.

        Args:
            devices: Entries of `get_ep_devices()`, all for the same device and provider.
            options: Options of the provider.

        Raises:
            InvalidArgument: `devices` is empty, has other objects, or several providers.
            Fail: Several devices are selected: clrt runs a model on one device.
        """
        choice = choice_of(devices, options)
        self._given.pick = lambda: choice

    def has_providers(self) -> bool:
        """Returns whether execution providers, a device or a selection policy were set."""
        return bool(self._given.providers) or self._given.pick is not None

    def set_provider_selection_policy(self, policy: object) -> None:
        """Selects the device of sessions that are created without `providers`, by a policy.

        Args:
            policy: An `OrtExecutionProviderDevicePolicy`, or its number.

        Raises:
            InvalidArgument: `policy` is not a policy.
            NotImplemented: The policy depends on power.
            DeviceError: There is no device.
        """
        choice = choice_by_policy(policy)
        self._given.pick = lambda: choice

    def set_provider_selection_policy_delegate(self, delegate: Callable[..., Any]) -> None:
        """Selects the device of sessions that are created without `providers`, by a function.

        Args:
            delegate: Called whenever a session is created, with the entries of `get_ep_devices()`,
                two empty dicts in place of metadata, and the maximum number of entries; returns
                the selected entries.
        """
        self._given.pick = lambda: choice_by_delegate(delegate)

    def register_custom_ops_library(self, path: str) -> None:
        """Warns that a library of custom ops is not used; models with its ops cannot be loaded.

        Raises:
            Fail: The file does not exist.
        """
        if not Path(path).is_file():
            raise Fail(f"The library of ops '{path}' does not exist.")
        LOG.warning("The ops of '%s' are not used: they work only with ONNX Runtime.", path)

    def set_load_cancellation_flag(self, is_cancelled: bool) -> None:
        """Sets whether sessions created from now on raise `ModelLoadCanceled`."""
        self._given.is_load_cancelled = bool(is_cancelled)

    def set_ep_context_data_read_func(
        self, read_func: Callable[..., Any], max_data_size: int = 0
    ) -> None:
        """Has no effect: clrt does not support models that a provider's compiler has processed."""
        LOG.debug("SessionOptions.set_ep_context_data_read_func is ignored.")

    def clear_ep_context_data_read_func(self) -> None:
        """Has no effect, since `set_ep_context_data_read_func` has none."""


class RunOptions(Settings):
    """Options of runs.

    Setting `terminate` to True cancels the runs that use this object. Other options are ignored.
    """

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    _lock: Lock
    _runs: set[Run]

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_lock", Lock())
        object.__setattr__(self, "_runs", set())

    def __setattr__(self, name: str, value: object) -> None:
        with self._lock:
            super().__setattr__(name, value)
            cancelled = list(self._runs) if name == "terminate" and value else []
        for run in cancelled:
            run.cancel()

    def result(self, begin: Callable[[], Run]) -> dict[str, Any]:
        """Starts a run that `terminate` can cancel, and returns its outputs.

        Args:
            begin: Starts the run.

        Raises:
            Fail: The run was cancelled, or `terminate` is True already.
            ClrtError: The run failed.
        """
        if self.terminate:
            raise Fail(TERMINATED)
        run = begin()
        with self._lock:
            self._runs.add(run)
            is_cancelled = self.terminate  # set before the run was registered
        try:
            if is_cancelled:
                run.cancel()
            return run.wait()
        except CancelledError as error:
            raise Fail(TERMINATED) from error
        finally:
            with self._lock:
                self._runs.discard(run)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Stores a configuration entry, which has no effect on runs."""
        self._add_entry(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """Returns the value of a configuration entry added before.

        Raises:
            RuntimeException: There is no entry with this key.
        """
        return self._entry(key)

    def add_active_adapter(self, adapter: object) -> None:
        """Raises an error: LoRA adapters must be merged into the model before it is exported.

        Raises:
            NotImplemented: Always.
        """
        raise exceptions.NotImplemented(
            "Adapters are not applied to runs; merge them and export the model."
        )

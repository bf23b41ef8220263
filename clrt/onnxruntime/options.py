"""Settings of sessions and runs: each of ONNX Runtime's is taken, and followed where it can be."""

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

TERMINATED = "Exiting due to terminate flag being set to true."


class GraphOptimizationLevel(IntEnum):
    """How much a graph is optimised: not at all, cleaned up, or fused as clrt always does."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether nodes run one after the other; clrt leaves that to the device."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """In which order nodes run; clrt chooses it when it plans memory."""

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
    """Named settings, which are the class's own attributes, and entries of text."""

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
        wanted = type(self._defaults[name])
        taken = _CASTS[wanted](value) if wanted in _CASTS else value
        if not isinstance(taken, wanted):
            raise WrongType(f"{kind}.{name} must be of type {wanted.__name__}; it is {value!r}.")
        object.__setattr__(self, name, taken)

    def changed(self) -> dict[str, object]:
        """The settings that are no longer what they are by default."""
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
class Given:
    """What the methods of a `SessionOptions` were told.

    Attributes:
        sizes: Of dims by their name.
        denoted: Of dims by their denotation.
        initializers: Values in the place of initializers.
        providers: Settings of providers by name.
        files: Contents of external data by the name that the model has for their file.
        pick: Chooses the device; None if neither devices nor a policy were set.
        is_load_cancelled: Whether nothing is to be loaded.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    denoted: dict[str, int] = field(default_factory=dict)
    initializers: dict[str, OrtValue] = field(default_factory=dict)
    providers: dict[str, dict[str, str]] = field(default_factory=dict)
    files: dict[str, Array] = field(default_factory=dict)
    pick: Callable[[], ProviderChoice] | None = None
    is_load_cancelled: bool = False


class SessionOptions(Settings):
    """How a session loads and runs its model.

    Followed are `graph_optimization_level`, `intra_op_num_threads` on a CPU device,
    `optimized_model_filepath`, `enable_profiling`, the log's level, overrides of free dims, values
    of initializers and providers. All else is noted in the log, at the level of debugging.
    """

    _followed: ClassVar = frozenset(
        (
            "enable_profiling",
            "graph_optimization_level",
            "intra_op_num_threads",
            "log_severity_level",
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

    _given: Given

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_given", Given())

    @property
    def given(self) -> Given:
        """What its methods were told."""
        return self._given

    @property
    def optimize_level(self) -> int:
        """The level that `clrt.load` takes."""
        return min(int(self.graph_optimization_level), 2)

    def log_ignored(self) -> None:
        """Says which settings have no effect."""
        for name, value in self.changed().items():
            if name not in self._followed:
                LOG.debug("SessionOptions.%s = %r is ignored: clrt decides it.", name, value)
        for key, value in self._entries.items():
            LOG.debug("The session's entry %s = %s is ignored.", key, value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry; none has an effect."""
        self._add_entry(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """An entry.

        Raises:
            RuntimeException: There is none of this key.
        """
        return self._entry(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Gives the symbolic dim of a name a size in all inputs."""
        self._given.sizes[name] = operator.index(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Gives the dims of a denotation, such as "DATA_BATCH", a size in all inputs."""
        self._given.denoted[denotation] = operator.index(size)

    def add_initializer(self, name: str, value: OrtValue) -> None:
        """Puts a value in the place of an initializer.

        Raises:
            RuntimeException: It is no OrtValue that holds a tensor.
        """
        if not isinstance(value, OrtValue) or not value.is_tensor():
            raise RuntimeException(f"The value of initializer '{name}' must be an OrtValue.")
        self._given.initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """Puts values in the place of initializers.

        Raises:
            RuntimeException: As `add_initializer`, or there are more of the one than of the other.
        """
        if len(names) != len(values):
            raise RuntimeException(f"There are {len(names)} names and {len(values)} values.")
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Gives the contents of external data, in the place of files beside the model.

        Args:
            names: Of the files, as the model has them.
            buffers: Their contents: bytes, or what exposes a buffer of them.
            lengths: Bytes of each that count.

        Raises:
            RuntimeException: The sequences differ in length, or a buffer has fewer bytes.
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
                raise RuntimeException(f"'{name}' has {data.size} bytes, and not {length}.")
            self._given.files[name] = data[: operator.index(length)]

    def values(self) -> dict[str, Array]:
        """The elements that take the place of those of initializers."""
        return {name: value.numpy() for name, value in self._given.initializers.items()}

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """A provider for sessions that are given none."""
        self._given.providers[name] = dict(options)

    def add_provider_for_devices(
        self, devices: Sequence[OrtEpDevice], options: Mapping[str, str]
    ) -> None:
        """Selects the device of sessions that are given no providers.

        Args:
            devices: One of `get_ep_devices()`.

        Raises:
            InvalidArgument: There is none, or it is none of these.
            Fail: There are several: a model runs on one.
        """
        choice = choice_of(devices, options)
        self._given.pick = lambda: choice

    def has_providers(self) -> bool:
        """Whether providers, a device or a policy were set."""
        return bool(self._given.providers) or self._given.pick is not None

    def set_provider_selection_policy(self, policy: object) -> None:
        """Selects the device of sessions that are given no providers, by a policy.

        Raises:
            InvalidArgument: It is no policy.
            NotImplemented: It goes by power.
            DeviceError: There is no device.
        """
        choice = choice_by_policy(policy)
        self._given.pick = lambda: choice

    def set_provider_selection_policy_delegate(self, delegate: Callable[..., Any]) -> None:
        """Selects the device of sessions that are given no providers, by a function.

        It is called as ONNX Runtime does, when a session is made, but with no metadata.
        """
        self._given.pick = lambda: choice_by_delegate(delegate)

    def register_custom_ops_library(self, path: str) -> None:
        """Notes that a library of ops is not used; a model that needs one is refused.

        Raises:
            Fail: There is no such file.
        """
        if not Path(path).is_file():
            raise Fail(f"The library of ops '{path}' does not exist.")
        LOG.warning("The ops of '%s' are not used: they are made for ONNX Runtime alone.", path)

    def set_load_cancellation_flag(self, is_cancelled: bool) -> None:
        """Whether loading ends with `ModelLoadCanceled`."""
        self._given.is_load_cancelled = bool(is_cancelled)

    def set_ep_context_data_read_func(
        self, read_func: Callable[..., Any], max_data_size: int = 0
    ) -> None:
        """Is ignored: no model has data of a provider's compiler."""
        LOG.debug("SessionOptions.set_ep_context_data_read_func is ignored.")

    def clear_ep_context_data_read_func(self) -> None:
        """Is ignored, as `set_ep_context_data_read_func`."""


class RunOptions(Settings):
    """How a run goes. `terminate`, set to True in another thread, ends the runs that have them."""

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
            ended = list(self._runs) if name == "terminate" and value else []
        for run in ended:
            run.cancel()

    def result(self, begin: Callable[[], Run]) -> dict[str, Any]:
        """The outputs of a run that `terminate` ends.

        Raises:
            Fail: It was ended.
            ClrtError: As `Run.wait`.
        """
        if self.terminate:
            raise Fail(TERMINATED)
        run = begin()
        with self._lock:
            self._runs.add(run)
            is_late = self.terminate
        try:
            if is_late:
                run.cancel()
            return run.wait()
        except CancelledError as error:
            raise Fail(TERMINATED) from error
        finally:
            with self._lock:
                self._runs.discard(run)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry; none has an effect."""
        self._add_entry(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """An entry.

        Raises:
            RuntimeException: There is none of this key.
        """
        return self._entry(key)

    def add_active_adapter(self, adapter: object) -> None:
        """Is not there: an adapter of LoRA is merged into the model when it is exported.

        Raises:
            NotImplemented: Always.
        """
        raise exceptions.NotImplemented(
            "Adapters are not applied to runs; merge them and export the model."
        )

"""Methods of a session that describe it, and methods that have no effect in clrt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clrt.onnxruntime.exceptions import Fail
from clrt.onnxruntime.loaded_model import LoadedFile
from clrt.onnxruntime.memory import OrtMemoryInfo
from clrt.onnxruntime.options import LOG, SessionOptions
from clrt.onnxruntime.providers import ProviderChoice
from clrt.onnxruntime.trace import SessionTrace
from clrt.onnxruntime.types import ModelMetadata, NodeArg
from clrt.onnxruntime.values import OrtValue


class SessionInfo:
    """Base of `InferenceSession` with the methods that do not run the model."""

    _loaded: LoadedFile
    _choice: ProviderChoice
    _options: SessionOptions
    _trace: SessionTrace | None

    def get_inputs(self) -> list[NodeArg]:
        """Returns descriptions of the model's inputs, without overridable initializers."""
        return self._loaded.inputs

    def get_outputs(self) -> list[NodeArg]:
        """Returns descriptions of the model's outputs."""
        return self._loaded.outputs

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Returns descriptions of the initializers for which runs may pass other values."""
        return self._loaded.overridable

    def get_modelmeta(self) -> ModelMetadata:
        """Returns the metadata of the ONNX file, such as producer, version and description."""
        return self._loaded.metadata()

    def get_session_options(self) -> SessionOptions:
        """Returns the `SessionOptions` with which the session was created."""
        return self._options

    def get_providers(self) -> list[str]:
        """Returns the names of the session's execution providers, of which the first is used.

        The list has the requested providers that are available, and always the provider of CPUs.
        """
        return list(self._choice.options)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Returns the options of each execution provider of the session, by its name."""
        return {name: dict(options) for name, options in self._choice.options.items()}

    def enable_fallback(self) -> None:
        """Has no effect: if a device fails, an error is raised, and no other device is tried."""

    def disable_fallback(self) -> None:
        """Has no effect: if a device fails, an error is raised, and no other device is tried."""

    def end_profiling(self) -> str:
        """Writes the profile of the runs so far to a file, and returns the file's name.

        Returns "" if the session does not profile, or from the second call on.
        """
        return "" if self._trace is None else self._trace.save()

    def get_profiling_start_time_ns(self) -> int:
        """Returns the time at which profiling began, from `time.perf_counter_ns`.

        0 if the session does not profile.
        """
        return 0 if self._trace is None else self._trace.start_ns

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Creates an OrtValue that holds a tensor of zeros, in host memory or on a device.

        Args:
            shape: Shape of the tensor.
            element_type: A NumPy type or a number in `onnx.TensorProto.DataType`.
            device_type: "cpu" for host memory, or a device type such as "clrt" or "cuda".
            device_id: Number of the device among those of its type.
            vendor_id: PCI vendor ID, without effect.

        Raises:
            RuntimeException: The device does not exist.
            InvalidArgument: The element type or the device type is unknown.
        """
        make = OrtValue.ortvalue_from_shape_and_type
        return make(shape, element_type, device_type, device_id, vendor_id)

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Returns the preferred memory of each input: host memory."""
        return [OrtMemoryInfo() for _ in self._loaded.inputs]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Returns the memory of each output that is not bound: host memory."""
        return [OrtMemoryInfo() for _ in self._loaded.outputs]

    def get_input_epdevices(self) -> list[None]:
        """Returns None for each input: there are no plug-in devices."""
        return [None for _ in self._loaded.inputs]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """Raises an error; the command `clrt explain` shows where each node runs.

        Raises:
            Fail: Always.
        """
        raise Fail("Use `clrt explain` or Model.explain to see where each node runs.")

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Has no effect: no graph is captured."""

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Has no effect: clrt has no options that change between runs."""
        LOG.debug("The options %s of providers are ignored.", dict(options))

    def get_tuning_results(self) -> list[Any]:
        """Returns an empty list: `clrt tune` keeps its own records."""
        return []

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Has no effect: `clrt tune` keeps its own records."""
        LOG.debug("Results of ONNX Runtime's tuning are ignored.")

"""What a session tells of itself, and what of ONNX Runtime's has no meaning here."""

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


class SessionFacts:
    """The part of a session that does not run the model."""

    _loaded: LoadedFile
    _choice: ProviderChoice
    _options: SessionOptions
    _trace: SessionTrace | None

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that a run must be given."""
        return self._loaded.inputs

    def get_outputs(self) -> list[NodeArg]:
        """The outputs."""
        return self._loaded.outputs

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that a run may be given other values of."""
        return self._loaded.overridable

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says of its model."""
        return self._loaded.metadata()

    def get_session_options(self) -> SessionOptions:
        """The options of the session."""
        return self._options

    def get_providers(self) -> list[str]:
        """The providers that were asked for and are there; the first is the one that is used."""
        return list(self._choice.options)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of each provider."""
        return {name: dict(options) for name, options in self._choice.options.items()}

    def enable_fallback(self) -> None:
        """Has no effect: a device that fails is an error, and no other takes its place."""

    def disable_fallback(self) -> None:
        """Has no effect: a device that fails is an error, and no other takes its place."""

    def end_profiling(self) -> str:
        """Writes the profile of the runs so far, and returns its file; "" without profiling."""
        return "" if self._trace is None else self._trace.save()

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, by `time.perf_counter_ns`; 0 without profiling."""
        return 0 if self._trace is None else self._trace.start_ns

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """As `OrtValue.ortvalue_from_shape_and_type`."""
        make = OrtValue.ortvalue_from_shape_and_type
        return make(shape, element_type, device_type, device_id, vendor_id)

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where inputs are best: in the host's memory."""
        return [OrtMemoryInfo() for _ in self._loaded.inputs]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where outputs are: in the host's memory, unless they are bound to a device."""
        return [OrtMemoryInfo() for _ in self._loaded.outputs]

    def get_input_epdevices(self) -> list[None]:
        """The device of a plug-in for each input; there are no plug-ins."""
        return [None for _ in self._loaded.inputs]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """Is not there: `clrt explain` tells where each node runs.

        Raises:
            Fail: Always.
        """
        raise Fail("Which nodes run where is told by `clrt explain`, and by Model.explain.")

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Has no effect: no graph is captured."""

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Has no effect: clrt has no options that change between runs."""
        LOG.debug("The options %s of providers are ignored.", dict(options))

    def get_tuning_results(self) -> list[Any]:
        """What was tuned: nothing here; `clrt tune` keeps its own records."""
        return []

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Has no effect: `clrt tune` keeps its own records."""
        LOG.debug("Results of ONNX Runtime's tuning are ignored.")

"""`IOBinding`: inputs and outputs that stay bound to memory from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clrt.ir.op import Array
from clrt.onnxruntime import exceptions
from clrt.onnxruntime.exceptions import Fail, InvalidArgument, RuntimeException
from clrt.onnxruntime.values import OrtDevice, OrtValue, OrtValueVector, at_address
from clrt.runtime.opencl.tensors import DeviceTensor

if TYPE_CHECKING:
    from clrt.onnxruntime.session import InferenceSession


@dataclass(frozen=True)
class _BoundOutput:
    """Target of a bound output: a location for new memory, or an OrtValue to overwrite.

    Attributes:
        device: Location of the output: host memory or a device.
        value: OrtValue that receives the elements; None for new memory at each run.
    """

    device: OrtDevice
    value: OrtValue | None = None


class IOBinding:
    """Inputs and outputs of a session that stay bound to memory from run to run.

    Attributes:
        session: Session that the binding belongs to.
        inputs: Array or OrtValue bound to each input, by name.
    """

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self.inputs: dict[str, Any] = {}
        self._targets: dict[str, _BoundOutput] = {}
        self._outputs = OrtValueVector()

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Binds an input to an array, whose elements are read at each run.

        Raises:
            RuntimeException: The model has no such input.
        """
        self._check_input(name)
        self.inputs[name] = arr_on_cpu

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Binds an input to host memory at an address.

        Args:
            name: Name of the input.
            device_type: "cpu": other types are not supported.
            device_id: Ignored for host memory.
            element_type: A NumPy type or a number in `onnx.TensorProto.DataType`.
            shape: Shape of the input.
            buffer_ptr: The address, which must stay valid.

        Raises:
            RuntimeException: The model has no such input.
            NotImplemented: `device_type` is not "cpu".
        """
        self._check_input(name)
        self.inputs[name] = _at(OrtDevice(device_type, device_id), buffer_ptr, shape, element_type)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an input to an OrtValue; on the session's device it is read without a copy.

        Raises:
            RuntimeException: The model has no such input.
        """
        self._check_input(name)
        self.inputs[name] = ortvalue

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Binds an output to a location, or to host memory at an address.

        Args:
            name: Name of the output.
            device_type: "cpu" for host memory, or a device type such as "clrt" or "cuda".
            device_id: Number of the device among those of its type.
            element_type: A NumPy type or a number in `onnx.TensorProto.DataType`; needed with
                `buffer_ptr`, else ignored.
            shape: Shape of the output; needed with `buffer_ptr`, else ignored.
            buffer_ptr: Address of host memory that receives the output; None for new memory at each
                run.

        Raises:
            InvalidArgument: `buffer_ptr` is passed without element type or shape.
            NotImplemented: `buffer_ptr` is passed, and `device_type` is not "cpu".
        """
        device = OrtDevice(device_type, device_id)
        if buffer_ptr is None:
            self._targets[name] = _BoundOutput(device)
            return
        if element_type is None or shape is None:
            raise InvalidArgument(
                "`element_type` and `shape` are to be provided if pre-allocated memory is provided"
            )
        value = OrtValue(_at(device, buffer_ptr, shape, element_type))
        self._targets[name] = _BoundOutput(device, value)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an output to an OrtValue, which receives the output's elements at each run."""
        self._targets[name] = _BoundOutput(OrtDevice(ortvalue.device_name()), ortvalue)

    def synchronize_inputs(self) -> None:
        """Has no effect: a run waits for its inputs."""

    def synchronize_outputs(self) -> None:
        """Has no effect: a run returns once its outputs are complete."""

    def get_outputs(self) -> list[OrtValue]:
        """Returns the outputs of the last run, in the order of binding."""
        return list(self._outputs)

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """Returns the outputs of the last run as a vector, in the order of binding."""
        return self._outputs

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Returns the outputs of the last run as arrays, lists or dicts on the host."""
        return [v.numpy() if v.is_tensor() else v.held for v in self._outputs]

    def clear_binding_inputs(self) -> None:
        """Unbinds all inputs."""
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Unbinds all outputs, and drops the outputs of the last run."""
        self._targets.clear()
        self._outputs = OrtValueVector()

    def wanted(self) -> tuple[list[str], bool]:
        """Returns the names of the bound outputs, and whether any of them stays on a device.

        Raises:
            InvalidArgument: No output is bound, or the model has no output of a bound name.
        """
        if not self._targets:
            raise InvalidArgument("At least one output should be requested.")
        known = {arg.name for arg in self.session.get_outputs()}
        for name in self._targets:
            if name not in known:
                raise InvalidArgument(f"Invalid output name: {name}")
        return list(self._targets), any(not t.device.is_host for t in self._targets.values())

    def take(self, results: Mapping[str, Any]) -> None:
        """Stores the outputs of a run in the bound memory, or in new OrtValues.

        Args:
            results: Outputs of the run by name.

        Raises:
            Fail: An output and its bound memory differ in type or shape.
        """
        outputs = OrtValueVector()
        for name, target in self._targets.items():
            result = results[name]
            if target.device.is_host and isinstance(result, DeviceTensor):
                result = result.numpy()
            if target.value is None:
                outputs.append(self.session.value(name, result, target.device))
            else:
                _assign(name, target.value, result)
                outputs.append(target.value)
        self._outputs = outputs

    def _check_input(self, name: str) -> None:
        args = (*self.session.get_inputs(), *self.session.get_overridable_initializers())
        if all(arg.name != name for arg in args):
            raise RuntimeException(f"Failed to find NodeArg with name: {name} in the def list")


def _at(device: OrtDevice, address: int, shape: Sequence[int], element_type: Any) -> Array:
    """Returns an array over host memory at an address; raises NotImplemented for other devices."""
    if device.is_host:
        return at_address(address, shape, element_type)
    raise exceptions.NotImplemented(
        f"An address on '{device.name}' cannot be used by OpenCL; bind an array or an OrtValue."
    )


def _assign(name: str, value: OrtValue, result: Any) -> None:
    """Stores the elements of an output in the OrtValue that it is bound to.

    Args:
        name: Name of the output, for the error's message.
        value: OrtValue that the output is bound to.
        result: The output's array or device tensor.

    Raises:
        Fail: The output and the OrtValue differ in type or shape.
    """
    output = OrtValue(result)
    if output.data_type() != value.data_type() or output.shape() != value.shape():
        raise Fail(
            f"The OrtValue bound to output '{name}' is {value.data_type()} {value.shape()}, but "
            f"the output is {output.data_type()} {output.shape()}."
        )
    if isinstance(value.held, np.ndarray):
        np.copyto(value.held, result)
    else:
        value.held = result

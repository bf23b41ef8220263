"""Checks inputs of runs as ONNX Runtime does: dtypes must match, names of dims have no effect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from clrt.errors import visible
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.onnxruntime.exceptions import Fail, InvalidArgument, RuntimeException, WrongSizes
from clrt.onnxruntime.types import NodeArg, array_type, dtype_of_type, tensor_type
from clrt.onnxruntime.values import OrtValue
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.tensors import DeviceTensor

Check: TypeAlias = Callable[[Any], Any]
_FIX = "Please fix either the inputs/outputs or the model."


class Feeds:
    """Checks the inputs of a session's runs as ONNX Runtime does, and converts them.

    Args:
        inputs: Description of each input of the session.
        overridable: Description of each initializer for which runs may pass a value.
        device: Device of the session; tensors on other devices are copied to the host first.
    """

    def __init__(
        self, inputs: Sequence[NodeArg], overridable: Sequence[NodeArg], device: DeviceInfo
    ) -> None:
        self._args = [*inputs, *overridable]
        self._checks = {arg.name: _check_for(arg, device) for arg in self._args}
        self._names = [arg.name for arg in inputs]
        optional = {arg.name for arg in inputs if arg.type.startswith("optional")}
        self._required = frozenset(self._names) - optional
        self._optional = optional
        self._overridable = frozenset(arg.name for arg in overridable)

    def of(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Checks inputs and converts them to arrays, device tensors, lists, dicts or None.

        Args:
            given: Arrays, OrtValues, lists or dicts by input name.

        Returns:
            Converted inputs by name; None for optional inputs that are not passed.

        Raises:
            InvalidArgument: An input is missing, unknown, or of another type, rank or size.
            RuntimeException: An input is an object that cannot be converted.
        """
        self.check_names(given)
        checks = self._checks
        feeds = {name: checks[name](value) for name, value in given.items()}
        for name in self._optional:
            feeds.setdefault(name, None)
        return feeds

    def check_names(self, given: Mapping[str, Any]) -> None:
        """Checks that all required inputs are passed, and no unknown inputs.

        Args:
            given: Inputs by name; only the names are checked.

        Raises:
            InvalidArgument: An input is missing or unknown.
        """
        names = given.keys()
        if not self._required <= names:
            missing = [n for n in self._names if n in self._required and n not in names]
            raise InvalidArgument(
                f"Required inputs ({missing}) are missing from input feed ({list(names)})."
            )
        if not names <= self._checks.keys():
            unknown = next(n for n in names if n not in self._checks)
            raise InvalidArgument(f"Invalid input name: {unknown}")

    def overridden(self, feeds: Collection[str]) -> frozenset[str]:
        """Returns which of the inputs passed to a run are overridable initializers, by name.

        Args:
            feeds: Names of the inputs passed.
        """
        return self._overridable.intersection(feeds) if self._overridable else self._overridable

    def disagree(self, feeds: Mapping[str, Any]) -> bool:
        """Returns whether inputs may contradict the names of symbolic dims.

        True if dims of one name have different sizes, or if a name is an expression. ONNX Runtime
        accepts such inputs, since it ignores the names.

        Args:
            feeds: Converted inputs by name.
        """
        sizes: dict[str, set[int]] = {}
        for arg in self._args:
            shape = getattr(feeds.get(arg.name), "shape", ())
            for dim, size in zip(arg.shape, shape, strict=False):
                if isinstance(dim, str):
                    sizes.setdefault(dim, set()).add(size)
        return any(len(values) > 1 or not dim.isidentifier() for dim, values in sizes.items())


def _check_for(arg: NodeArg, device: DeviceInfo) -> Check:
    """Returns a function that checks and converts the value that a user passes for an input.

    Args:
        arg: Description of the input.
        device: Device of the session.
    """
    name, type_ = arg.name, arg.type
    if type_.startswith("optional("):
        inside = NodeArg(name, type_.removeprefix("optional(")[:-1], arg.shape)
        inner = _check_for(inside, device)
        return lambda given: None if _unwrap(given) is None else inner(given)
    if type_.startswith("seq(tensor("):
        item = _tensor_check(name, type_.removeprefix("seq(")[:-1], None, device)
        return lambda given: [item(one) for one in _check_list(name, _unwrap(given))]
    if type_.startswith("tensor("):
        return _tensor_check(name, type_, arg.shape, device)
    return _unwrap


def _tensor_check(
    name: str, type_: str, shape: Sequence[int | str | None] | None, device: DeviceInfo
) -> Check:
    """Returns a function that checks and converts a tensor that a user passes for an input.

    Args:
        name: Name of the input, for messages.
        type_: Type of the input, such as "tensor(float)".
        shape: For each axis the size, the name of a symbolic dim, or None; None instead of a list
            for any rank.
        device: Device of the session.
    """
    dtype = dtype_of_type(type_)
    expected = dtype.numpy  # of text it equals no array's dtype, since it has no length
    rank = None if shape is None else len(shape)
    fixed = [(i, d) for i, d in enumerate(shape or ()) if isinstance(d, int)]

    def check(given: Any) -> Any:
        if not isinstance(given, np.ndarray):
            given = _tensor(name, dtype, given, device)
        if given.dtype != expected:
            given = _match_dtype(name, dtype, given)
        actual = len(given.shape)
        if actual != rank and rank is not None:
            raise InvalidArgument(
                f"Invalid rank for input: {name} Got: {actual} Expected: {rank} {_FIX}"
            )
        for axis, size in fixed:
            if given.shape[axis] != size:
                raise _wrong_sizes(name, given.shape, fixed)
        return given

    return check


def _wrong_sizes(name: str, shape: Sequence[int], fixed: Sequence[tuple[int, int]]) -> WrongSizes:
    lines = "\n".join(
        f" index: {axis} Got: {shape[axis]} Expected: {size}"
        for axis, size in fixed
        if shape[axis] != size
    )
    return WrongSizes(
        f"Got invalid dimensions for input: {visible(name)} for the following indices\n"
        f"{lines}\n {_FIX}"
    )


def _unwrap(given: Any) -> Any:
    return given.held if isinstance(given, OrtValue) else given


def _check_list(name: str, given: Any) -> Sequence[Any]:
    if not isinstance(given, (list, tuple)):
        raise RuntimeException(f"Input '{name}' is a sequence; pass a list.")
    return given


def _tensor(name: str, dtype: DType, given: Any, device: DeviceInfo) -> Array | DeviceTensor:
    """Converts an OrtValue, device tensor or list to an array, or a tensor on the right device.

    Args:
        name: Name of the input, for messages.
        dtype: Dtype of the input, to which a list is converted.
        given: OrtValue, device tensor, array or list that the user passed.
        device: Device of the session; tensors on other devices are returned as arrays.

    Raises:
        Fail: The value is None.
        RuntimeException: The value has another type, or its elements cannot be converted.
    """
    value = _unwrap(given)
    if isinstance(value, DeviceTensor):
        return value if value.session.device.key == device.key else value.numpy()
    if isinstance(value, np.ndarray):
        return value
    if value is None:
        raise Fail(f"Missing Input: {name}")
    if not isinstance(value, list):
        raise RuntimeException(
            f"Unable to handle object of type {type(value)}: "
            f"Input must be a list of dictionaries or a single numpy array for input '{name}'."
        )
    try:
        if dtype is DType.STRING:
            return _texts(np.asarray(value, object))
        return np.asarray(value).astype(dtype.numpy)
    except (TypeError, ValueError) as error:
        raise RuntimeException(
            f"Could not create tensor from given input list for input '{name}': {error}"
        ) from error


def _match_dtype(name: str, dtype: DType, given: Array | DeviceTensor) -> Array | DeviceTensor:
    """Converts an array of strings, or of another byte order, to the dtype of an input.

    Args:
        name: Name of the input, for the error's message.
        dtype: Dtype of the input.
        given: Array or device tensor passed by the user.

    Raises:
        InvalidArgument: The dtype differs from the input's.
    """
    if isinstance(given, DeviceTensor):
        actual = given.dtype
        if actual is dtype:
            return given
        raise _wrong_type(name, OrtValue(given).data_type(), dtype)
    if dtype is DType.STRING and given.dtype.kind in "SUO":
        return _texts(given)
    if dtype is not DType.STRING and given.dtype.newbyteorder("=") == dtype.numpy:
        return given.astype(dtype.numpy)
    raise _wrong_type(name, array_type(given), dtype)


def _wrong_type(name: str, actual: str, dtype: DType) -> InvalidArgument:
    return InvalidArgument(
        f"Unexpected input data type. Actual: ({actual}) , expected: ({tensor_type(dtype)}), "
        f"for input: {name}"
    )


def _texts(array: Array) -> Array:
    """Converts each element of an object array to a str, as ONNX Runtime does.

    Returns arrays of other dtypes unchanged.
    """
    if array.dtype.kind != "O":
        return array
    flat = [x if isinstance(x, str) else str(x) for x in array.reshape(-1).tolist()]
    result = np.empty(len(flat), object)
    result[:] = flat
    return result.reshape(array.shape)

"""Inputs of a run checked as ONNX Runtime does: a dtype is never converted, symbols say nothing."""

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
    """The inputs of a session.

    Args:
        inputs: What a run must be given.
        overridable: What it may be given besides.
        device: What it runs on; tensors on others come by the host.
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
        """The inputs as a model takes them.

        Raises:
            InvalidArgument: One is missing or unknown, or is of another type, rank or size.
            RuntimeException: One is nothing that a run takes.
        """
        self.check_names(given)
        checks = self._checks
        feeds = {name: checks[name](value) for name, value in given.items()}
        for name in self._optional:
            feeds.setdefault(name, None)
        return feeds

    def check_names(self, given: Mapping[str, Any]) -> None:
        """Whether all that is required is there, and nothing unknown.

        Raises:
            InvalidArgument: It is not so.
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
        """Those of the names that are initializers."""
        return self._overridable.intersection(feeds) if self._overridable else self._overridable

    def disagree(self, feeds: Mapping[str, Any]) -> bool:
        """Whether the sizes of the inputs contradict the names of their dims."""
        sizes: dict[str, set[int]] = {}
        for arg in self._args:
            shape = getattr(feeds.get(arg.name), "shape", ())
            for dim, size in zip(arg.shape, shape, strict=False):
                if isinstance(dim, str):
                    sizes.setdefault(dim, set()).add(size)
        return any(len(found) > 1 or not dim.isidentifier() for dim, found in sizes.items())


def _check_for(arg: NodeArg, device: DeviceInfo) -> Check:
    """What makes an input of what a user gives, or raises."""
    name, type_ = arg.name, arg.type
    if type_.startswith("optional("):
        inside = NodeArg(name, type_.removeprefix("optional(")[:-1], arg.shape)
        inner = _check_for(inside, device)
        return lambda given: None if _held(given) is None else inner(given)
    if type_.startswith("seq(tensor("):
        item = _tensor_check(name, type_.removeprefix("seq(")[:-1], None, device)
        return lambda given: [item(one) for one in _listed(name, _held(given))]
    if type_.startswith("tensor("):
        return _tensor_check(name, type_, arg.shape, device)
    return _held


def _tensor_check(
    name: str, type_: str, shape: Sequence[int | str | None] | None, device: DeviceInfo
) -> Check:
    """The check of a tensor; `shape` is None for one of any rank."""
    dtype = dtype_of_type(type_)
    wanted = dtype.numpy  # no array has that of text, which has no length
    rank = None if shape is None else len(shape)
    fixed = [(i, d) for i, d in enumerate(shape or ()) if isinstance(d, int)]

    def check(given: Any) -> Any:
        if not isinstance(given, np.ndarray):
            given = _tensor(name, dtype, given, device)
        if given.dtype != wanted:
            given = _typed(name, dtype, given)
        found = len(given.shape)
        if found != rank and rank is not None:
            raise InvalidArgument(
                f"Invalid rank for input: {name} Got: {found} Expected: {rank} {_FIX}"
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


def _held(given: Any) -> Any:
    return given.held if isinstance(given, OrtValue) else given


def _listed(name: str, given: Any) -> Sequence[Any]:
    if not isinstance(given, (list, tuple)):
        raise RuntimeException(f"Input '{name}' is a sequence; pass a list.")
    return given


def _tensor(name: str, dtype: DType, given: Any, device: DeviceInfo) -> Array | DeviceTensor:
    """A tensor of what is no array: an OrtValue, or a list, whose elements have no dtype yet."""
    held = _held(given)
    if isinstance(held, DeviceTensor):
        return held if held.session.device.key == device.key else held.numpy()
    if isinstance(held, np.ndarray):
        return held
    if held is None:
        raise Fail(f"Missing Input: {name}")
    if not isinstance(held, list):
        raise RuntimeException(
            f"Unable to handle object of type {type(held)}: "
            f"Input must be a list of dictionaries or a single numpy array for input '{name}'."
        )
    try:
        if dtype is DType.STRING:
            return _texts(np.asarray(held, object))
        return np.asarray(held).astype(dtype.numpy)
    except (TypeError, ValueError) as error:
        raise RuntimeException(
            f"Could not create tensor from given input list for input '{name}': {error}"
        ) from error


def _typed(name: str, dtype: DType, given: Array | DeviceTensor) -> Array | DeviceTensor:
    """A tensor whose dtype is not NumPy's for the input: text, or in another order of bytes.

    Raises:
        InvalidArgument: It is of another type.
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
    """Text of any objects, as ONNX Runtime makes it."""
    if array.dtype.kind != "O":
        return array
    flat = [x if isinstance(x, str) else str(x) for x in array.reshape(-1).tolist()]
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape(array.shape)

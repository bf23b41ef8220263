"""Converts inputs of functions: arrays, device tensors, and Python's numbers and lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from clrt.errors import InputError, counted
from clrt.ir.dtypes import DType, native
from clrt.ir.op import Array
from clrt.ir.runtime_values import RuntimeValue
from clrt.models.onnx.op_schemas import FormalParameter, OpSchemaInfo
from clrt.models.onnx.single_op import with_texts
from clrt.runtime.opencl.tensors import DeviceTensor

# ONNX names of dtypes, preferred first, for Python numbers of each NumPy kind whose dtype does not
# follow from an array among the inputs.
_DEFAULTS: Mapping[str, Sequence[str]] = {
    "b": ("bool",),
    "i": ("int64", "int32", "float", "uint8"),
    "f": ("float", "double", "float16"),
    "U": ("string",),
}
_ONNX_NAMES = {"float": "float32", "double": "float64"}
# Values without a dtype: numbers, and lists of them, get the dtype of array inputs, as in NumPy.
Loose: TypeAlias = "bool | int | float | str | list[Any] | tuple[Any, ...]"


def coerce_inputs(form: OpSchemaInfo, given: Sequence[Any]) -> list[RuntimeValue]:
    """Converts the inputs of a functional call to arrays, device tensors, lists, dicts or None.

    Args:
        form: Schema of the op.
        given: Inputs in order; None for an input that is left out.

    Raises:
        InputError: There are too many inputs, or one cannot be converted: it is no tensor, or the
            dtype that the op requires cannot represent its numbers.
    """
    formals = _formals(form, len(given))
    values: list[Any] = [_convert(f, x, form) for f, x in zip(formals, given, strict=True)]
    dtypes: dict[str, DType] = {}
    for formal, value in zip(formals, values, strict=True):
        if formal is not None and isinstance(value, np.ndarray | DeviceTensor):
            dtypes.setdefault(formal.type_name, dtype_of(value))
    for index, (formal, value) in enumerate(zip(formals, values, strict=True)):
        if isinstance(value, _Untyped):
            values[index] = _array(value.value, formal, dtypes, form)
    return values


class _Untyped:
    """A Python number, or a list of numbers, whose dtype follows from a call's other inputs."""

    def __init__(self, value: Loose) -> None:
        self.value = value


def _formals(form: OpSchemaInfo, count: int) -> list[FormalParameter | None]:
    """Returns the formal parameter of each input of a call; a variadic parameter repeats.

    Args:
        form: Schema of the op. If it lists no inputs, the result is None for each input.
        count: Number of inputs of the call.

    Raises:
        InputError: There are more inputs than parameters.
    """
    if form.inputs is None:
        return [None] * count
    is_variadic = any(f.option == "variadic" for f in form.inputs)
    limit = math.inf if is_variadic else len(form.inputs)
    if count > limit:
        names = ", ".join(form.attributes) or "none"
        takes = counted(int(limit), "input")
        raise InputError(
            f"{form.title} takes {takes}, and {count} are given; attributes are keywords: {names}."
        )
    return [form.inputs[min(i, len(form.inputs) - 1)] for i in range(count)]


def _convert(formal: FormalParameter | None, value: Any, form: OpSchemaInfo) -> Any:
    """Converts an argument of a call to an array, or a list to arrays if the op takes lists.

    Python numbers, and lists of numbers, are wrapped in `_Untyped` until their dtype is known.
    None, dicts and device tensors are returned unchanged.

    Args:
        formal: Formal parameter of the input; None if unknown.
        value: Argument of the call.
        form: Schema of the op.

    Raises:
        InputError: The argument is a list of arrays for one tensor, or no array.
    """
    if value is None or isinstance(value, DeviceTensor | dict):
        return value
    if isinstance(value, list | tuple) and formal is not None and formal.takes_lists:
        return [_array(x, None, {}, form) for x in value]
    if isinstance(value, list | tuple) and any(map(_is_tensor, value)):
        raise InputError(
            f"{form.title} is given a list of arrays as one input; pass each on its own, or one "
            "array of all."
        )
    if isinstance(value, bool | int | float | str | list | tuple):
        return _Untyped(value)
    return _array(value, formal, {}, form)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, DeviceTensor) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _array(
    value: Any, formal: FormalParameter | None, dtypes: Mapping[str, DType], form: OpSchemaInfo
) -> Array | DeviceTensor:
    """Converts an input to an array; Python numbers get a dtype that the op allows.

    Args:
        value: The input; a device tensor is returned as it is.
        formal: Formal parameter of the input; None if unknown.
        dtypes: Dtype by type variable of the schema; only variables that other inputs determine.
        form: Schema of the op, for the error's message.

    Raises:
        InputError: The value is not an array, or the dtype cannot represent its numbers.
    """
    if isinstance(value, DeviceTensor):
        return value
    name = "an input" if formal is None else f"input '{formal.name}'"
    try:
        array = np.asarray(value)
        if isinstance(value, bool | int | float | str | list | tuple) and not _typed(value):
            array = _loose(array, formal, dtypes)
        array = with_texts(array)
        array = native(array)
        DType.of(array.dtype)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        reason = str(error).rstrip(".")
        raise InputError(f"{form.title}: {name} is {value!r:.60}: {reason}.") from error
    return array


def _typed(value: Any) -> bool:
    """Returns whether a list or tuple has an element with a dtype, at any depth; else False."""
    return isinstance(value, list | tuple) and any(hasattr(x, "dtype") or _typed(x) for x in value)


def _loose(array: Array, formal: FormalParameter | None, dtypes: Mapping[str, DType]) -> Array:
    """Converts an array of Python numbers to the dtype of the other inputs, or to a default.

    Args:
        array: Numbers or strings in NumPy's default dtype.
        formal: Formal parameter of the input; None if unknown.
        dtypes: Dtype by type variable of the schema; only variables that other inputs determine.

    Raises:
        ValueError: The dtype cannot represent the numbers.
    """
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)  # an empty list, of axes say
    kind = array.dtype.kind
    dtype = None if formal is None else dtypes.get(formal.type_name)
    if dtype is None:
        options = _DEFAULTS.get(kind, ())
        types = None if formal is None else formal.types
        allowed = (o for o in options if types is None or f"tensor({o})" in types)
        name = next(allowed, options[0] if options else "")
        dtype = DType(_ONNX_NAMES.get(name, name))
    cast = array.astype(dtype.numpy)
    if (kind == "f" and not dtype.is_float) or (kind in "iu" and not np.array_equal(cast, array)):
        raise ValueError(f"{dtype}, the dtype of the other inputs, cannot represent these numbers")
    return cast


def dtype_of(value: Array | DeviceTensor) -> DType:
    """Returns the dtype of an array or device tensor."""
    return value.dtype if isinstance(value, DeviceTensor) else DType.of(value.dtype)


def tensors_in(values: Iterable[RuntimeValue]) -> Iterator[DeviceTensor]:
    """Yields the device tensors among values, and in lists of values at any depth."""
    for value in values:
        if isinstance(value, DeviceTensor):
            yield value
        elif isinstance(value, list):
            yield from tensors_in(value)

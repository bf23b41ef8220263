"""What calls of functions take: arrays, tensors on a device, and numbers and lists of Python."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from clrt.errors import InputError, counted
from clrt.ir.dtypes import DType, native
from clrt.ir.op import Array
from clrt.models.onnx.op_schemas import FormalParameter, OpSchemaInfo
from clrt.models.onnx.single_op import with_texts
from clrt.ops.base import RuntimeValue
from clrt.runtime.opencl.tensors import DeviceTensor

# Of a number of Python that no array beside it gives a dtype, best first: ONNX's names.
_DEFAULTS: Mapping[str, Sequence[str]] = {
    "b": ("bool",),
    "i": ("int64", "int32", "float", "uint8"),
    "f": ("float", "double", "float16"),
    "U": ("string",),
}
_ONNX_NAMES = {"float": "float32", "double": "float64"}
# Numbers, and lists of them, take the dtype of the arrays beside them, as in NumPy.
Loose: TypeAlias = "bool | int | float | str | list[Any] | tuple[Any, ...]"


def coerce_inputs(form: OpSchemaInfo, given: Sequence[Any]) -> list[RuntimeValue]:
    """The inputs of a call as arrays, tensors on a device, lists of these, dicts, or None.

    Raises:
        InputError: One is no array, or has numbers that its dtype does not have.
    """
    formals = _formals(form, len(given))
    found: list[Any] = [_settled(f, x, form) for f, x in zip(formals, given, strict=True)]
    dtypes: dict[str, DType] = {}
    for formal, value in zip(formals, found, strict=True):
        if formal is not None and isinstance(value, np.ndarray | DeviceTensor):
            dtypes.setdefault(formal.type_name, dtype_of(value))
    for index, (formal, value) in enumerate(zip(formals, found, strict=True)):
        if isinstance(value, _Untyped):
            found[index] = _array(value.value, formal, dtypes, form)
    return found


class _Untyped:
    """A number, or a list of numbers, whose dtype comes from the inputs beside it."""

    def __init__(self, value: Loose) -> None:
        self.value = value


def _formals(form: OpSchemaInfo, count: int) -> list[FormalParameter | None]:
    """The formal of each input; the last one may stand for many."""
    if form.inputs is None:
        return [None] * count
    most = math.inf if any(f.option == "variadic" for f in form.inputs) else len(form.inputs)
    if count > most:
        names = ", ".join(form.attributes) or "none"
        takes = counted(int(most), "input")
        raise InputError(
            f"{form.title} takes {takes}, and {count} are given; attributes are keywords: {names}."
        )
    return [form.inputs[min(i, len(form.inputs) - 1)] for i in range(count)]


def _settled(formal: FormalParameter | None, value: Any, form: OpSchemaInfo) -> Any:
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
    """The array of a value; numbers of Python get a dtype that the input may have."""
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
    """Whether a list has arrays in it, or is empty of anything with a dtype of its own."""
    return isinstance(value, list | tuple) and any(hasattr(x, "dtype") or _typed(x) for x in value)


def _loose(array: Array, formal: FormalParameter | None, dtypes: Mapping[str, DType]) -> Array:
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)  # an empty list, of axes say
    kind = array.dtype.kind
    beside = None if formal is None else dtypes.get(formal.type_name)
    if beside is None:
        options = _DEFAULTS.get(kind, ())
        types = None if formal is None else formal.types
        allowed = (o for o in options if types is None or f"tensor({o})" in types)
        name = next(allowed, options[0] if options else "")
        beside = DType(_ONNX_NAMES.get(name, name))
    cast = array.astype(beside.numpy)
    if (kind == "f" and not beside.is_float) or (kind in "iu" and not np.array_equal(cast, array)):
        raise ValueError(f"{beside}, the dtype there, does not have these numbers")
    return cast


def dtype_of(value: Array | DeviceTensor) -> DType:
    """The dtype of an array or tensor."""
    return value.dtype if isinstance(value, DeviceTensor) else DType.of(value.dtype)


def tensors_in(values: Iterable[RuntimeValue]) -> Iterator[DeviceTensor]:
    """The tensors on a device among values, and inside lists."""
    for value in values:
        if isinstance(value, DeviceTensor):
            yield value
        elif isinstance(value, list):
            yield from tensors_in(value)

"""Runs functions on arrays: each call runs a small model, which is cached for similar calls.

Input sizes are symbols of the model, the same symbol for equal sizes. One model thus serves many
shapes, and a new shape costs planning but no compile. Inputs whose elements the importer or
planning must know are constants of the model.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import chain
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from clrt.errors import DeviceError, UnsupportedError
from clrt.functional.operands import dtype_of, tensors_in
from clrt.ir.dims import Dim, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.op import Array, ContainerType, TensorType
from clrt.ir.runtime_values import RuntimeValue
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo, choose_device
from clrt.runtime.opencl.tensors import DeviceTensor
from clrt.util import env_vars
from clrt.util.fast_dataclass import dataclass

# Maximum number of cached models; each has an arena for its largest call.
MAX_MODELS = 256
# An integer input of at most this many elements is probably an axis, a shape or a count, which
# planning may have to know.
_FEW_ELEMS = 64
_T = TypeVar("_T")


class RecentlyUsed(Generic[_T]):
    """Thread-safe least-recently-used cache, bounded by its number of values."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[Hashable, _T] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> _T | None:
        """Returns the value cached under a key and marks it as used; None if there is none."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def add(self, key: Hashable, value: _T) -> None:
        """Sets the value of a key; evicts the least recently used value if the cache is full."""
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._capacity:
                self._values.popitem(last=False)

    def clear(self) -> None:
        """Removes all values from the cache."""
        with self._lock:
            self._values.clear()


@dataclass(frozen=True)
class Operation:
    """The computation of a functional call: an op with its attributes, or a small graph.

    Attributes:
        key: Cache key: equal for calls with the same computation.
        graph: Builds the graph of the computation from the types of its inputs, named x0, x1, ….
            An input whose type has known elements becomes a constant. A type is None if the input
            is left out.
        known: Indices of the inputs whose elements planning must know.
        sized: Whether the graph depends on input sizes, so that different sizes need different
            graphs.
    """

    key: Hashable
    graph: Callable[[Sequence[TensorType | None]], Graph]
    known: frozenset[int] = frozenset()
    sized: bool = False


class Call(NamedTuple):
    """A functional call that was computed.

    Attributes:
        operation: Its computation.
        inputs: Its inputs in order; None for an input that is left out.
        device: Device that was asked for, as in `results_of`.
        results: Its outputs in order.
    """

    operation: Operation
    inputs: Sequence[RuntimeValue]
    device: str | int | None
    results: Sequence[Any]


@dataclass(frozen=True)
class Need:
    """Input elements and sizes that the cached model of a functional call is specialised for.

    Attributes:
        sizes: Whether all dims of inputs are numbers instead of symbols.
        elements: Indices of the inputs that are constants of the model.
    """

    sizes: bool
    elements: frozenset[int]


_MODELS: RecentlyUsed[Model] = RecentlyUsed(MAX_MODELS)
_NEEDS: RecentlyUsed[Need] = RecentlyUsed(16 * MAX_MODELS)
# Calls of the current thread or task, while they are recorded.
_RECORDED: ContextVar[list[Call] | None] = ContextVar("recorded_calls", default=None)


@contextmanager
def recorded_calls() -> Iterator[list[Call]]:
    """Gives the list to which functional calls of this thread or task are added, until the end."""
    calls: list[Call] = []
    token = _RECORDED.set(calls)
    try:
        yield calls
    finally:
        _RECORDED.reset(token)


def clear_cache() -> None:
    """Drops all cached models of `clrt.functional`; calls in progress end normally."""
    _MODELS.clear()
    _NEEDS.clear()


def results_of(
    operation: Operation, inputs: Sequence[RuntimeValue], device: str | int | None = None
) -> list[Any]:
    """Computes the outputs of a functional call, in order.

    Args:
        operation: Computation of the call.
        inputs: Inputs in order; None for an input that is left out.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None for the device of
            the inputs, or the default device.

    Returns:
        Device tensors if an input is a device tensor, else arrays.

    Raises:
        InputError: The number of inputs, or one of the inputs, does not match the operation.
        ShapeError: The shapes or dtypes of the inputs do not match the operation.
        UnsupportedError: clrt does not support the op with these inputs or attributes.
        DeviceError: Inputs are on several devices, or the driver fails.
    """
    tensors = list(tensors_in(inputs))
    model, constants = _model_for(operation, inputs, _device_for(tensors, device))
    feeds = {f"x{k}": x for k, x in enumerate(inputs) if x is not None and k not in constants}
    results = list(model.run(feeds, device_outputs=bool(tensors)).values())
    if (calls := _RECORDED.get()) is not None:
        calls.append(Call(operation, inputs, device, results))
    return results


def _device_for(tensors: Sequence[DeviceTensor], request: str | int | None) -> DeviceInfo:
    wanted = None if request is None and tensors else _chosen(request, env_vars.DEVICE.get())
    for tensor in tensors:
        wanted = wanted or tensor.session.device
        if tensor.session.device.index != wanted.index:
            raise DeviceError(
                f"An input is on {tensor.session.device}, but another input, or the device of the "
                f"call, is {wanted}; pass its .numpy()."
            )
    assert wanted is not None
    return wanted


@cache
def _chosen(request: str | int | None, default: str) -> DeviceInfo:
    return choose_device(default if request is None else request)


def _model_for(
    operation: Operation, inputs: Sequence[RuntimeValue], device: DeviceInfo
) -> tuple[Model, frozenset[int]]:
    """Returns a cached or new model for a call.

    Args:
        operation: Computation of the call.
        inputs: Inputs in order; None for an input that is left out.
        device: Device that the model runs on.

    Returns:
        (model, indices of the inputs that are constants of the model).

    Raises:
        UnsupportedError: clrt does not support the computation, however specialised.
    """
    family = operation.key, device.index, tuple(map(_category, inputs))
    last = _NEEDS.get(family)
    refused: UnsupportedError | None = None
    for need in chain([] if last is None else [last], _needs(operation, inputs)):
        try:
            model = _cached_model(operation, inputs, device, need)
        except UnsupportedError as error:
            refused = refused or error
            continue
        if need is not last:
            _NEEDS.add(family, need)
        return model, need.elements
    assert refused is not None
    raise refused


def _needs(operation: Operation, inputs: Sequence[RuntimeValue]) -> Iterator[Need]:
    """Yields the specialisations to try for a call, the most general first.

    The first `Need` has symbolic sizes if the operation allows them; the last one has all tensors
    among the inputs as constants.
    """
    tensors = {k for k, x in enumerate(inputs) if isinstance(x, np.ndarray | DeviceTensor)}
    known = frozenset(operation.known & tensors)
    few = known | {k for k in tensors if _is_few(inputs[k])}
    one_more = ((few | {k}) for k in sorted(tensors - few))
    if not operation.sized:
        yield Need(False, known)
    tried = set()
    for elements in chain([known, few], one_more, [frozenset(tensors)]):
        if elements not in tried:
            tried.add(elements)
            yield Need(True, frozenset(elements))


def _is_few(value: Any) -> bool:
    return bool(value.size <= _FEW_ELEMS and not dtype_of(value).is_float)


def _cached_model(
    operation: Operation, inputs: Sequence[RuntimeValue], device: DeviceInfo, need: Need
) -> Model:
    constants = {k: _elements(inputs[k]) for k in need.elements}
    names: dict[int, str] = {}
    forms = tuple(
        (constants[k].dtype.str, constants[k].shape, constants[k].tobytes())
        if k in constants
        else _form(x, need.sizes, names)
        for k, x in enumerate(inputs)
    )
    key = operation.key, device.index, forms
    model = _MODELS.get(key)
    if model is None:
        types = [
            TensorType.of(constants[k]) if k in constants else _type(x, form)
            for k, (x, form) in enumerate(zip(inputs, forms, strict=True))
        ]
        model = load(operation.graph(types), device=device.index)
        _MODELS.add(key, model)
    return model


def _elements(value: Any) -> Array:
    return value.numpy() if isinstance(value, DeviceTensor) else np.asarray(value)


def _category(value: RuntimeValue) -> Hashable:
    """Returns a cache key of an input: calls with equal keys probably have the same `Need`.

    The key of a tensor is (dtype, rank, whether it is small and not float, so that it may hold
    axes, a shape or a count). The key of a sequence or map is its type as a string. The key of
    None is None.
    """
    if isinstance(value, np.ndarray | DeviceTensor):
        return dtype_of(value), len(value.shape), _is_few(value)
    return None if value is None else str(_type(value, None))


def _form(value: RuntimeValue, sizes: bool, names: dict[int, str]) -> Any:
    """Returns the dtype and dims of an input, for the cache key of a functional call's model.

    Dims of 0 and 1 always stay numbers, since they broadcast differently.

    Args:
        value: Input of a functional call.
        sizes: Whether dims of 2 and more stay numbers, too; else they become symbol names.
        names: Symbol name of each size so far; new sizes are added.

    Returns:
        (dtype, dims) of a tensor; the type of a sequence or map as a string; None for None.
    """
    if not isinstance(value, np.ndarray | DeviceTensor):
        return None if value is None else str(_type(value, None))
    dims = tuple(
        d if sizes or d < 2 else names.setdefault(d, f"n{len(names)}") for d in value.shape
    )
    return dtype_of(value), dims


def _type(value: RuntimeValue, form: Any) -> TensorType | None:
    """Returns the type that a call's input has in the graph; None for an omitted input.

    Args:
        value: Input of a functional call: a tensor, a list (sequence), a dict (map) or None.
        form: Of a tensor: its dtype and dims as `_form` returns them, or None for a type of
            unknown rank. Ignored for other inputs.
    """
    if value is None:
        return None
    if isinstance(value, list):
        items = {str(t): t for x in value if (t := _type(x, None)) is not None}
        one = next(iter(items.values())) if len(items) == 1 else TensorType(DType.FLOAT32, None)
        return ContainerType.sequence(one)
    if isinstance(value, dict):
        columns = (np.asarray(list(c)) for c in (value.keys(), value.values()))
        key, element = (DType.of(c.dtype) for c in columns)
        return ContainerType.map(key, element)
    assert isinstance(value, np.ndarray | DeviceTensor)
    if form is None:
        return TensorType(dtype_of(value), None)
    dims: tuple[Dim, ...] = tuple(symbol(d) if isinstance(d, str) else d for d in form[1])
    return TensorType(form[0], dims)

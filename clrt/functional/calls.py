"""Runs functions on arrays: each is a small model, kept for calls that are alike.

A model serves every shape of a pattern: sizes are symbols, equal ones the same, so that a new shape
costs planning and no compile. What the importer or planning must know is part of the model.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np

from clrt.errors import DeviceError, UnsupportedError
from clrt.functional.operands import dtype_of, tensors_in
from clrt.ir.dims import Dim, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.op import Array, ContainerType, TensorType
from clrt.ops.base import RuntimeValue
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo, choose_device
from clrt.runtime.opencl.tensors import DeviceTensor
from clrt.util import env_vars

# Models that are kept; each has an arena for its largest call.
MOST_MODELS = 256
# An input of at most so many integers is probably an axis, a shape or a count.
_FEW_ELEMS = 64
_T = TypeVar("_T")


class RecentlyUsed(Generic[_T]):
    """Values by key, of which those used longest ago go first. Threads may share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, _T] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> _T | None:
        """The value of a key, which is now the one used last."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def add(self, key: Hashable, value: _T) -> None:
        """Keeps a value, in the place of one that another thread has made."""
        with self._lock:
            self._kept[key] = value
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Keeps none."""
        with self._lock:
            self._kept.clear()


@dataclass(frozen=True)
class Operation:
    """What a call computes.

    Attributes:
        key: The same for calls that compute the same.
        graph: Makes its graph, with inputs x0, x1, … of given types; those with elements are
            constants.
        known: Inputs that planning must know.
        sized: Whether the graph depends on sizes, so that it is another one for other sizes.
    """

    key: Hashable
    graph: Callable[[Sequence[TensorType | None]], Graph]
    known: frozenset[int] = frozenset()
    sized: bool = False


@dataclass(frozen=True)
class Need:
    """What a graph must know of its inputs.

    Attributes:
        sizes: Whether all dims are numbers.
        elements: The inputs that are constants.
    """

    sizes: bool
    elements: frozenset[int]


_MODELS: RecentlyUsed[Model] = RecentlyUsed(MOST_MODELS)
_NEEDS: RecentlyUsed[Need] = RecentlyUsed(16 * MOST_MODELS)


def clear_cache() -> None:
    """Forgets the models of all functions; their memory is free once no call uses it."""
    _MODELS.clear()
    _NEEDS.clear()


def results_of(
    operation: Operation, inputs: Sequence[RuntimeValue], device: str | int | None = None
) -> list[Any]:
    """The outputs of a call: on the device where an input is, else arrays.

    Raises:
        InputError, ShapeError: The inputs do not fit.
        UnsupportedError: clrt does not run the op in this form.
        DeviceError: Inputs lie on several devices, or the driver fails.
    """
    tensors = list(tensors_in(inputs))
    model, constants = _model_for(operation, inputs, _device_for(tensors, device))
    feeds = {f"x{k}": x for k, x in enumerate(inputs) if x is not None and k not in constants}
    return list(model.run(feeds, device_outputs=bool(tensors)).values())


def _device_for(tensors: Sequence[DeviceTensor], request: str | int | None) -> DeviceInfo:
    wanted = None if request is None and tensors else _chosen(request, env_vars.DEVICE.get())
    for tensor in tensors:
        wanted = wanted or tensor.session.device
        if tensor.session.device.index != wanted.index:
            raise DeviceError(
                f"An input lies on {tensor.session.device} but another one, or the call, is on "
                f"{wanted}; pass its .numpy()."
            )
    assert wanted is not None
    return wanted


@cache
def _chosen(request: str | int | None, default: str) -> DeviceInfo:
    return choose_device(default if request is None else request)


def _model_for(
    operation: Operation, inputs: Sequence[RuntimeValue], device: DeviceInfo
) -> tuple[Model, frozenset[int]]:
    """The model of a call, and the inputs that are constants in it."""
    family = operation.key, device.index, tuple(map(_kind, inputs))
    last = _NEEDS.get(family)
    refused: UnsupportedError | None = None
    for need in chain([] if last is None else [last], _needs(operation, inputs)):
        try:
            model = _made(operation, inputs, device, need)
        except UnsupportedError as error:
            refused = refused or error
            continue
        if need is not last:
            _NEEDS.add(family, need)
        return model, need.elements
    assert refused is not None
    raise refused


def _needs(operation: Operation, inputs: Sequence[RuntimeValue]) -> Iterator[Need]:
    """What a graph may have to know, the least first."""
    given = {k for k, x in enumerate(inputs) if isinstance(x, np.ndarray | DeviceTensor)}
    known = frozenset(operation.known & given)
    few = known | {k for k in given if _is_few(inputs[k])}
    one_more = ((few | {k}) for k in sorted(given - few))
    if not operation.sized:
        yield Need(False, known)
    tried = set()
    for elements in chain([known, few], one_more, [frozenset(given)]):
        if elements not in tried:
            tried.add(elements)
            yield Need(True, frozenset(elements))


def _is_few(value: Any) -> bool:
    return bool(value.size <= _FEW_ELEMS and not dtype_of(value).is_float)


def _made(
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


def _kind(value: RuntimeValue) -> Hashable:
    """What all calls share that need to know the same."""
    if isinstance(value, np.ndarray | DeviceTensor):
        return dtype_of(value), len(value.shape), _is_few(value)
    return None if value is None else str(_type(value, None))


def _form(value: RuntimeValue, sizes: bool, names: dict[int, str]) -> Any:
    """Dtype and dims of an input: a symbol for each size, but for those that broadcasting tells
    apart.
    """
    if not isinstance(value, np.ndarray | DeviceTensor):
        return None if value is None else str(_type(value, None))
    dims = tuple(
        d if sizes or d < 2 else names.setdefault(d, f"n{len(names)}") for d in value.shape
    )
    return dtype_of(value), dims


def _type(value: RuntimeValue, form: Any) -> TensorType | None:
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

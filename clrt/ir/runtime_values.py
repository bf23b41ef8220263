"""Values that pass between the stages of a run: tensors, sequences, maps, and None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np

from clrt.errors import ModelError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array


class DeviceTensorLike(Protocol):
    """Protocol of a tensor in device memory, for ops that run on the host."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> DType: ...

    def numpy(self) -> Array:
        """Returns a copy of the elements as a host array."""


Tensor: TypeAlias = "Array | DeviceTensorLike"
# A value passed between the stages of a run: a tensor on host or device, a list (a sequence), a
# dict of Python scalars (a map), or None (an empty optional).
RuntimeValue: TypeAlias = "Tensor | list[RuntimeValue] | dict[Any, Any] | None"


def tensor(value: RuntimeValue) -> Tensor:
    """Returns a value of a run unchanged, typed as a tensor.

    Raises:
        ModelError: The value is a sequence, a map or None.
    """
    if value is None or isinstance(value, (list, dict)):
        raise _unlike(value, "a tensor")
    return value


def sequence(value: RuntimeValue) -> list[RuntimeValue]:
    """Returns a value of a run unchanged, typed as a sequence.

    Raises:
        ModelError: The value is not a sequence.
    """
    if not isinstance(value, list):
        raise _unlike(value, "a sequence")
    return value


def mapping(value: RuntimeValue) -> dict[Any, Any]:
    """Returns a value of a run unchanged, typed as a map.

    Raises:
        ModelError: The value is not a map.
    """
    if not isinstance(value, dict):
        raise _unlike(value, "a map")
    return value


_NO_TENSORS = (list, dict, type(None))


def shapes_of(values: Mapping[str, RuntimeValue]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor in `values` by name; omits sequences, maps and None."""
    return {
        n: x.shape if type(x) is np.ndarray else tuple(tensor(x).shape)
        for n, x in values.items()
        if type(x) is np.ndarray or not isinstance(x, _NO_TENSORS)
    }


def _unlike(value: RuntimeValue, wanted: str) -> ModelError:
    """Returns the error for a value of another kind than `wanted`."""
    kinds = {list: "a sequence", dict: "a map", type(None): "an optional without a value"}
    return ModelError(f"It expects {wanted}; it was given {kinds.get(type(value), 'a tensor')}.")

"""Converts between arrays and torch tensors, without importing torch unless asked to."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.ir.dtypes import native

Array = NDArray[Any]
F = TypeVar("F", bound=Callable[..., Any])


class SimilarityArray(np.ndarray[Any, np.dtype[Any]]):
    """ndarray of similarities that also has some methods of torch tensors, such as `cpu`.

    sentence-transformers returns tensors instead. torch's functions accept this array and return
    tensors.
    """

    def __float__(self) -> float:
        return float(self.item())

    def cpu(self) -> SimilarityArray:
        """Returns itself; the array is in host memory."""
        return self

    detach = cpu

    def numpy(self) -> Array:
        """Returns a view of this array as a plain ndarray."""
        return self.view(np.ndarray)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], _: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = {key: _as_tensor(value) for key, value in (kwargs or {}).items()}
        return function(*map(_as_tensor, args), **named)


def similarity_array(array: Array) -> SimilarityArray:
    """Returns a view of the array as `SimilarityArray`."""
    return np.asarray(array).view(SimilarityArray)


def as_array(given: Any) -> Array:
    """Converts an array, a tensor or a list of either to an array of floats.

    Returns:
        float64 if `given` is a float64 ndarray, else float32.

    Raises:
        InputError: The elements are not numbers.
    """
    if is_tensor(given):
        return as_array(given.detach().cpu().float().numpy())
    if isinstance(given, (list, tuple)) and given and is_tensor(given[0]):
        return np.stack([as_array(item) for item in given])
    array = np.asarray(given)
    wide = array.dtype == np.float64 and isinstance(given, np.ndarray)
    try:
        return array if wide else array.astype(np.float32, copy=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"Vectors must be numbers, not {type(given).__name__}.") from error


def is_tensor(value: object) -> bool:
    """Returns whether a value is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_tensor(array: Array) -> Any:
    """Copies the array to a torch tensor on the CPU.

    Raises:
        InputError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise InputError(
            "A tensor needs torch, which is not installed; install it, or use NumPy arrays "
            "(convert_to_tensor=False, convert_to_numpy=True)."
        ) from error
    return torch.from_numpy(native(np.array(array)))


def accepts_torch(function: F) -> F:
    """Decorates a function of arrays so that it returns a torch tensor if it receives tensors.

    An argument counts as tensors if it is a torch tensor, or a list or tuple that begins with one.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        has_tensor = any(map(_holds_tensor, (*args, *kwargs.values())))
        return to_tensor(result) if has_tensor else result

    return wrapped  # type: ignore[return-value]


def _holds_tensor(value: object) -> bool:
    return is_tensor(value) or (
        isinstance(value, (list, tuple)) and bool(value) and is_tensor(value[0])
    )


def _as_tensor(value: Any) -> Any:
    return to_tensor(value.numpy()) if isinstance(value, SimilarityArray) else value


def rows_of(array: Array) -> Array:
    """Returns a vector [size] as a matrix [1, size]; other arrays unchanged."""
    return array[None] if array.ndim == 1 else array

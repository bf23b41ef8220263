"""Arrays for programs that expect torch's tensors, and tensors where they were given."""

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
    """Similarities: an ndarray that also has what programs do with torch's tensors.

    torch's own functions take it, and give tensors.
    """

    def __float__(self) -> float:
        return float(self.item())

    def cpu(self) -> SimilarityArray:
        """Itself: it lies in the host's memory."""
        return self

    detach = cpu

    def numpy(self) -> Array:
        """The plain ndarray."""
        return self.view(np.ndarray)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], _: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = {key: _as_tensor(value) for key, value in (kwargs or {}).items()}
        return function(*map(_as_tensor, args), **named)


def similarity_array(array: Array) -> SimilarityArray:
    """The array as `SimilarityArray`, not copied."""
    return np.asarray(array).view(SimilarityArray)


def as_array(given: Any) -> Array:
    """Vectors as an array of floats: of an array, a tensor, or a list of either.

    Returns:
        float64 where that was given, else float32.
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
    """Whether a value is a torch tensor. Does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_tensor(array: Array) -> Any:
    """The array as a torch tensor on the CPU.

    Raises:
        InputError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise InputError(
            "A tensor needs torch, which is not installed; install it, or take NumPy's arrays "
            "(convert_to_tensor=False, convert_to_numpy=True)."
        ) from error
    return torch.from_numpy(native(np.array(array)))


def accepts_torch(function: F) -> F:
    """Lets a function of arrays answer in tensors where an argument is one."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        return to_tensor(found) if any(map(_holds_tensor, (*args, *kwargs.values()))) else found

    return wrapped  # type: ignore[return-value]


def _holds_tensor(value: object) -> bool:
    return is_tensor(value) or (
        isinstance(value, (list, tuple)) and bool(value) and is_tensor(value[0])
    )


def _as_tensor(value: Any) -> Any:
    return to_tensor(value.numpy()) if isinstance(value, SimilarityArray) else value


def rows_of(array: Array) -> Array:
    """The array as rows: one vector is one row."""
    return array[None] if array.ndim == 1 else array

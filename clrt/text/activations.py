"""Activation functions of cross-encoder scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError, UnsupportedError
from clrt.text.torch_interop import as_array, is_tensor, to_tensor

FloatArray = NDArray[np.float32]
Activation = Callable[[FloatArray], FloatArray]


def softmax(scores: FloatArray) -> FloatArray:
    """Returns the softmax of scores along the last axis."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _sigmoid(scores: FloatArray) -> FloatArray:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * scores)), np.float32)


_ACTIVATIONS: dict[str, Activation] = {
    "identity": lambda scores: scores,
    "relu": lambda scores: np.maximum(scores, 0),
    "sigmoid": _sigmoid,
    "softmax": softmax,
    "tanh": np.tanh,
}


def find_activation(named: str, origin: str) -> Activation:
    """Returns the activation function with a name such as "sigmoid" or "torch.nn.Sigmoid".

    Args:
        named: Name. Only the part after the last dot counts, and upper and lower case are equal.
        origin: Source of the name, for messages.

    Raises:
        UnsupportedError: clrt has no activation of that name.
    """
    function = _ACTIVATIONS.get(named.rpartition(".")[2].lower())
    if function is None:
        raise UnsupportedError(
            f"{origin} has the activation {named!r}; clrt supports {', '.join(_ACTIVATIONS)}; "
            "pass activation_fn= as one of these or a function of an array."
        )
    return function


def as_activation(given: Any) -> Activation:
    """Converts an activation to a function of float32 arrays.

    Args:
        given: Name, as in `find_activation`; function of an array, returned unchanged; or torch
            module.

    Raises:
        InputError: `given` is neither a name nor callable.
        UnsupportedError: clrt has no activation of that name.
    """
    if isinstance(given, str):
        return find_activation(given, "activation_fn")
    if not callable(given):
        raise InputError(f"activation_fn must be a name or a function, not {type(given).__name__}.")
    if type(given).__module__.partition(".")[0] != "torch":
        return given  # type: ignore[no-any-return]

    def apply(scores: FloatArray) -> FloatArray:
        result = given(to_tensor(scores))
        return np.asarray(as_array(result) if is_tensor(result) else result, np.float32)

    return apply

"""Every error clrt raises on purpose. Each message is one sentence first, then the remedy."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

_FOLDER = Path(__file__).parent


class ClrtError(Exception):
    """Base of all clrt errors."""


E = TypeVar("E", bound=ClrtError)


class ModelError(ClrtError):
    """The model file or folder cannot be read or is not valid."""


class UnsupportedError(ClrtError):
    """The model is valid but uses something clrt does not support.

    Attributes:
        nodes: One description per unsupported node ("Op 'node name' (opset 17)").
    """

    def __init__(self, message: str, nodes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.nodes = tuple(nodes)


class InputError(ClrtError, ValueError):
    """What was passed to `run` or `encode` does not fit: a name, a dtype, a value."""


class ShapeError(InputError):
    """Shapes, ranks or axes do not fit together."""


class NumberError(InputError):
    """A number in a tensor says where, or how much, and is outside what its node allows.

    Attributes:
        operand: Which input of the node has it.
        what: What it is there: "an index".
        number: The number.
        allowed: What is allowed, as a clause: "allowed are -3..2".
        node: The `clrt.ir.graph.Node`, once it is known.
    """

    def __init__(
        self,
        name: str,
        operand: int = 0,
        what: str = "a number",
        number: float = 0,
        allowed: str = "",
        node: Any = None,
    ) -> None:
        super().__init__(f"{name}: {what} is {number}; {allowed}.")
        self.operand = operand
        self.what = what
        self.number = number
        self.allowed = allowed
        self.node = node

    def at(self, node: Any) -> NumberError:
        """The same error of a node that is known by now."""
        return NumberError(repr(node), self.operand, self.what, self.number, self.allowed, node)


class PassError(ClrtError):
    """A graph pass broke an invariant: a bug in clrt, not in the model."""


class PlanError(ClrtError):
    """No execution plan could be made for these shapes."""


class KernelBuildError(ClrtError):
    """An OpenCL program did not compile.

    Attributes:
        log: The compiler's log.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class DeviceError(ClrtError):
    """No OpenCL platform, or the device asked for is absent or unusable."""


class OutOfMemoryError(DeviceError):
    """What is asked for does not fit on the device, or in the memory limit.

    Attributes:
        needed_bytes: What was asked for.
        available_bytes: What there is: the limit, or what the device says; 0 where unknown.
        fitting_batch: The largest batch that would fit, None where none does or it is unknown.
    """

    def __init__(
        self,
        message: str,
        needed_bytes: int = 0,
        available_bytes: int = 0,
        fitting_batch: int | None = None,
    ) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.fitting_batch = fitting_batch


class HostFallbackWarning(UserWarning):
    """Nodes run their NumPy reference on the host because no kernel variant fits."""


def reworded(error: E, message: str) -> E:
    """The same error, with its attributes, in other words."""
    again = copy.copy(error)
    again.args = (message,)
    return again


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line outside clrt that led here, however deep that is."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _FOLDER in Path(frame.f_code.co_filename).parents:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)

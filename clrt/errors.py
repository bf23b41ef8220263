"""Every error clrt raises on purpose. Each message is one sentence first, then the remedy."""

from __future__ import annotations

import copy
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

_FOLDER = Path(__file__).parent


# What a file names may be of any length, and hold what terminals obey.
_LONG_WORD = re.compile(r"\S{400,}")
_WORD_ENDS = 200, 100
_LONGEST = 20_000


def shown(text: str, lines: bool = False) -> str:
    """A text for messages: long names are cut, and what does not print is escaped.

    Args:
        lines: Whether it may have several lines.
    """
    if len(text) > 100 * _LONGEST:  # before anything reads all of it
        text = f"{text[: 50 * _LONGEST]}…{text[-_LONGEST:]}"
    head, tail = _WORD_ENDS
    text = _LONG_WORD.sub(lambda m: f"{m[0][:head]}…{m[0][-tail:]}", text)
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 1000]}…{text[-900:]}"
    if text.isprintable():
        return text
    return "".join(
        c
        if c.isprintable() or (lines and c in "\n\t")
        else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


class ClrtError(Exception):
    """Base of all clrt errors."""

    _lines: ClassVar[bool] = False

    def __init__(self, message: str = "") -> None:
        super().__init__(shown(str(message), self._lines))


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
        self.nodes = tuple(map(shown, nodes))


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

    _lines = True

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class DeviceError(ClrtError):
    """No OpenCL platform, or the device asked for is absent or unusable."""


class OutOfMemoryError(DeviceError):
    """What is asked for does not fit on the device, in the memory limit or in CLRT_HOST_LIMIT.

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
    again.args = (shown(message, error._lines),)
    return again


def without_title(message: str, title: str, op_name: str = "") -> str:
    """The message without the op's name in front, which the caller puts there with the node's."""
    op_name = op_name or title.partition(" ")[0]
    for head in (f"{title}: ", f"{op_name}: ", f"{title} ", f"{op_name} "):
        if message.startswith(head):
            return message[len(head) :]
    return message


def counted(count: int, noun: str, many: str = "") -> str:
    """A number of things in words: "1 node", "2 nodes", "2 launches" by `many`."""
    return f"{count} {noun if count == 1 else many or f'{noun}s'}"


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line outside clrt that led here, however deep that is."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _FOLDER in Path(frame.f_code.co_filename).parents:
        level, frame = level + 1, frame.f_back
    warnings.warn(shown(message), category, stacklevel=level)

"""Every error clrt raises on purpose. A message is one sentence, then the remedy."""

from __future__ import annotations

import copy
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

_FOLDER = Path(__file__).parent


# Names in a file may have any length, and contain control characters of terminals.
_LONG_WORD = re.compile(r"\S{400,}")
_WORD_ENDS = 200, 100
_LONGEST = 20_000
# Characters that a terminal obeys (C0, DEL, C1), that reorder or break a line (bidirectional
# controls, line separators), or that no encoding has (lone surrogates).
CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LINE_CONTROLS = "\n\t"
# Packages that not everybody needs, by the name of their module: what pip installs for it, and the
# extra of clrt that it belongs to.
_EXTRAS = {
    "PIL": ("pillow>=10", "vision"),
    "google": ("onnx>=1.17", "onnx"),
    "jinja2": ("jinja2>=3.1.6", "generate"),
    "llguidance": ("llguidance>=1", "constrained"),
    "onnx": ("onnx>=1.17", "onnx"),
    "pyarrow": ("pyarrow>=15", "parquet"),
    "ray": ("ray[data]>=2.40", "ray"),
    "re2": ("google-re2>=1.1.20240702", "regex"),
    "rich": ("rich>=13", "cli"),
    "soundfile": ("soundfile>=0.12", "audio"),
    "tokenizers": ("tokenizers>=0.20", "text"),
    "tqdm": ("tqdm>=4.66", "text"),
    "typer": ("typer>=0.12", "cli"),
}


def install_command(module: str) -> str:
    """Returns the command that installs the package of a module, as any shell takes it."""
    return f'pip install "{_EXTRAS[module][0]}"'


def shown(text: str, lines: bool = False) -> str:
    """The text as messages show it: long names cut, unprintable characters escaped.

    Args:
        lines: Whether the text may have several lines.
    """
    if len(text) > 100 * _LONGEST:  # before anything reads all of it
        text = f"{text[: 50 * _LONGEST]}…{text[-_LONGEST:]}"
    head, tail = _WORD_ENDS
    text = _LONG_WORD.sub(lambda m: f"{m[0][:head]}…{m[0][-tail:]}", text)
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 1000]}…{text[-900:]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c in "\n\t") else _escape(c) for c in text)


def visible(text: str, lines: bool = False) -> str:
    """Text with its control characters as escapes such as `\\x1b`, safe to print anywhere.

    Whole messages are made safe by `shown`, which cuts long words, too.

    Args:
        text: Text of a model, a label or a file name; of any length, and maybe a part of a stream,
            since each character is escaped for itself.
        lines: Whether newlines and tabs stay.
    """
    kept = _LINE_CONTROLS if lines else ""
    return CONTROLS.sub(lambda m: m[0] if m[0] in kept else _escape(m[0]), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


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
    """An argument of `run` or `encode` does not fit: a name, a dtype or a value."""


class ShapeError(InputError):
    """Shapes, ranks or axes do not fit together."""


class NumberError(InputError):
    """An index, length or other number in a tensor is outside what its node allows.

    Attributes:
        operand: The node's input that contains it.
        what: What the number means: "an index".
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
        """The same error with its node, once that is known."""
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


class CancelledError(ClrtError):
    """`cancel` was called on the run."""


class RunTimeoutError(ClrtError, TimeoutError):
    """A run was not done in the time that it was given."""


class OutOfMemoryError(DeviceError):
    """A request does not fit on the device, in the memory limit or in CLRT_HOST_LIMIT.

    Attributes:
        needed_bytes: Bytes that were asked for.
        available_bytes: Bytes that there are: the limit, or what the device reports; 0 if unknown.
        fitting_batch: The largest batch that would fit; None if none does, or if it is unknown.
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
    """The same error, with its attributes, and another message."""
    again = copy.copy(error)
    again.args = (shown(message, error._lines),)
    return again


def without_title(message: str, title: str, op_name: str = "") -> str:
    """The message without the op's name in front; the caller puts the node's name there."""
    op_name = op_name or title.partition(" ")[0]
    for head in (f"{title}: ", f"{op_name}: ", f"{title} ", f"{op_name} "):
        if message.startswith(head):
            return message[len(head) :]
    return message


def counted(count: int, noun: str, many: str = "") -> str:
    """A count with its noun: "1 node", "2 nodes"; `many` is an irregular plural."""
    return f"{count} {noun if count == 1 else many or f'{noun}s'}"


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line outside clrt of the call stack."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _FOLDER in Path(frame.f_code.co_filename).parents:
        level, frame = level + 1, frame.f_back
    warnings.warn(shown(message), category, stacklevel=level)


@contextmanager
def explain_missing_extra(what: str) -> Iterator[None]:
    """Around imports: says which extra brings a package that is missing.

    Args:
        what: What needs it, as the message begins.

    Raises:
        UnsupportedError: A package of an extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise UnsupportedError(
            f"{what} needs the package {package}, which is not here: {install_command(package)}, "
            f"or clrt with its extra '{_EXTRAS[package][1]}'; a frozen application has to include "
            "it."
        ) from error

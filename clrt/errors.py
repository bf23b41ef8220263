"""Exception classes of clrt, and helpers that format their messages.

A message is one sentence that states the problem, then the remedy.
"""

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


# Messages quote names from model files, which may be of any length and contain control characters.
# A word of at least this many characters is shortened to its first and last characters.
_LONG_WORD = re.compile(r"\S{400,}")
_WORD_HEAD_CHARS, _WORD_TAIL_CHARS = 200, 100
# Maximum length of a message, in characters.
_MAX_MESSAGE_CHARS = 20_000
# Unsafe to print: terminal controls (C0, DEL, C1), characters that reorder or break a line
# (bidirectional controls, line separators), and lone surrogates, which no encoding can represent.
CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LINE_CONTROLS = "\n\t"
# Optional dependencies by module name: (pip requirement, extra of clrt that includes it).
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
    """Returns the pip command that installs the package of `module`, quoted for any shell."""
    return f'pip install "{_EXTRAS[module][0]}"'


def shown(text: str, lines: bool = False) -> str:
    """Returns `text` shortened and escaped for an error message.

    Words of 400 or more characters, and a text of more than 20,000, are cut in the middle;
    unprintable characters become escapes such as `\\x1b`.

    Args:
        lines: Whether newlines and tabs are kept.
    """
    if len(text) > 100 * _MAX_MESSAGE_CHARS:  # bounds the time of the regular expression
        text = f"{text[: 50 * _MAX_MESSAGE_CHARS]}…{text[-_MAX_MESSAGE_CHARS:]}"
    head, tail = _WORD_HEAD_CHARS, _WORD_TAIL_CHARS
    text = _LONG_WORD.sub(lambda m: f"{m[0][:head]}…{m[0][-tail:]}", text)
    if len(text) > _MAX_MESSAGE_CHARS:
        text = f"{text[: _MAX_MESSAGE_CHARS - 1000]}…{text[-900:]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c in "\n\t") else _escape(c) for c in text)


def visible(text: str, lines: bool = False) -> str:
    """Returns `text` with control characters escaped, such as `\\x1b`, safe to print anywhere.

    For whole messages use `shown`, which also shortens long words.

    Args:
        text: Text from a model or a file name, of any length. It may be one chunk of a stream:
            each character is escaped independently.
        lines: Whether newlines and tabs are kept.
    """
    kept = _LINE_CONTROLS if lines else ""
    return CONTROLS.sub(lambda m: m[0] if m[0] in kept else _escape(m[0]), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class ClrtError(Exception):
    """Base class of all clrt errors. The message is shortened and escaped by `shown`."""

    _message_lines: ClassVar[bool] = False

    def __init__(self, message: str = "") -> None:
        super().__init__(shown(str(message), self._message_lines))


E = TypeVar("E", bound=ClrtError)


class ModelError(ClrtError):
    """The model file or folder cannot be read or is not valid."""


class UnsupportedError(ClrtError):
    """The model is valid but uses an op or feature that clrt does not support.

    Attributes:
        nodes: One description per unsupported node: "Op 'node name' (opset 17)".
    """

    def __init__(self, message: str, nodes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.nodes = tuple(map(shown, nodes))


class InputError(ClrtError, ValueError):
    """An argument of `run` or `encode` has an unknown name, a wrong dtype or an invalid value."""


class ShapeError(InputError):
    """Shapes, ranks or axes are incompatible."""


class NumberError(InputError):
    """An index, length or other number in an input tensor is outside the range its node allows.

    Attributes:
        operand: Index of the node's input that contains the number.
        what: Meaning of the number, for the message: "an index".
        number: The number.
        allowed: Allowed range as a clause: "allowed are -3..2".
        node: The `clrt.ir.graph.Node`; None until `at` sets it.
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
        """Returns a copy of the error with `node` set, which the message then names."""
        return NumberError(repr(node), self.operand, self.what, self.number, self.allowed, node)


class PassError(ClrtError):
    """A graph pass broke an invariant: a bug in clrt, not in the model."""


class PlanError(ClrtError):
    """No execution plan exists for the given input shapes."""


class KernelBuildError(ClrtError):
    """An OpenCL program did not compile.

    Attributes:
        log: Build log of the OpenCL compiler.
    """

    _message_lines = True

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class DeviceError(ClrtError):
    """No OpenCL platform was found, or the requested device is absent or unusable."""


class CancelledError(ClrtError):
    """The run was stopped by `cancel`."""


class RunTimeoutError(ClrtError, TimeoutError):
    """A run did not finish within its timeout."""


class OutOfMemoryError(DeviceError):
    """A request does not fit on the device, in the memory limit or in CLRT_HOST_LIMIT.

    Attributes:
        needed_bytes: Requested size in bytes.
        available_bytes: The limit, or the memory that the device reports, in bytes; 0 if unknown.
        fitting_batch: Largest batch size that would fit; None if none fits or if it is unknown.
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
    """Returns a copy of `error`, including its attributes, with another message."""
    copied = copy.copy(error)
    copied.args = (shown(message, error._message_lines),)
    return copied


def without_title(message: str, title: str, op_name: str = "") -> str:
    """Returns `message` without a leading op name, so that the caller can prefix the node's name.

    Args:
        message: An error message.
        title: Op name, or op name and node name, as the message may begin.
        op_name: Op name; "" means the first word of `title`.
    """
    op_name = op_name or title.partition(" ")[0]
    for head in (f"{title}: ", f"{op_name}: ", f"{title} ", f"{op_name} "):
        if message.startswith(head):
            return message[len(head) :]
    return message


def counted(count: int, noun: str, many: str = "") -> str:
    """Returns a count with its noun: "1 node", "2 nodes".

    Args:
        many: Plural of the noun; "" to append "s".
    """
    return f"{count} {noun if count == 1 else many or f'{noun}s'}"


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Issues a warning that points to the line outside clrt which called clrt.

    Args:
        category: Class of the warning.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _FOLDER in Path(frame.f_code.co_filename).parents:
        level, frame = level + 1, frame.f_back
    warnings.warn(shown(message), category, stacklevel=level)


@contextmanager
def explain_missing_extra(what: str) -> Iterator[None]:
    """Context manager around imports: if one fails, names the pip extra that provides it.

    Args:
        what: The feature that needs the package; the message begins with it.

    Raises:
        UnsupportedError: A package of an extra is not installed. Other missing modules raise
            ModuleNotFoundError.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise UnsupportedError(
            f"{what} needs the package {package}, which is not installed: "
            f"{install_command(package)}, or clrt with its extra '{_EXTRAS[package][1]}'; frozen "
            "applications must include it."
        ) from error

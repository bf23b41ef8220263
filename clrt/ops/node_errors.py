"""Errors that name the node or file they are about."""

from __future__ import annotations

from clrt.errors import (
    ClrtError,
    ModelError,
    NumberError,
    OutOfMemoryError,
    UnsupportedError,
    reworded,
    without_title,
)
from clrt.ir.dims import UndecidableDim
from clrt.ir.graph import Node


class NodeErrorContext:
    """Of a block in which an op looks at what a model gives it: errors name the node (or file).

    What an op raises on an invalid model is thus a `ModelError`, with the first error as its
    cause. Blocks hold calls of ops (`from_onnx`, `infer`, `reference`, `drive`) and nothing of
    clrt's own machinery, whose errors are bugs and stay what they are.
    """

    __slots__ = ("title",)

    def __init__(self, title: object) -> None:
        self.title = title

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            return
        if isinstance(error, NumberError) and isinstance(self.title, Node):
            raise error.at(self.title) from error
        title = str(self.title)
        if isinstance(error, NumberError):  # while a file is read: it is one of the file's
            said = f"{error.what} is {error.number}; {error.allowed}"
            raise ModelError(f"{title}: {said}.") from error
        if isinstance(error, ClrtError):
            if title.strip("'")[:_NAMED_CHARS] in str(error):
                return
            raise reworded(error, f"{title}: {without_title(str(error), title)}") from error
        if isinstance(error, UndecidableDim):
            raise UnsupportedError(f"{title}: it depends on the input shapes: {error}") from error
        if isinstance(error, MemoryError):
            raise OutOfMemoryError(
                f"{title}: it asks for more memory than the host has; use smaller sizes."
            ) from error
        if isinstance(error, _INVALID):
            raise ModelError(
                f"{title}: its attributes or inputs are not valid "
                f"({type(error).__name__}: {str(error)[:200]}); export the model again."
            ) from error


# Of a title that a message has already; a long one may be cut there.
_NAMED_CHARS = 40
# What an op that meets attributes or inputs of the wrong kind may raise besides clrt's errors.
_INVALID = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)

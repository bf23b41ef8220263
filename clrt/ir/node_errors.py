"""Context manager that adds the node or file to errors raised by ops."""

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
    """Context manager around calls of op methods that prefixes errors with the node or file.

    Python errors of an op on an invalid model (such as TypeError) become a `ModelError` with the
    original error as cause. Wrap only calls of ops (`from_onnx`, `infer`, `reference`,
    `run_host_driven`): in other code of clrt these errors are bugs and must not be converted.

    Attributes:
        title: The node, or the name of the file, that messages begin with.
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
        if isinstance(error, NumberError):  # the title is a file: the number comes from it
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
                f"{title}: it needs more memory than the host has; use smaller sizes."
            ) from error
        if isinstance(error, _INVALID):
            raise ModelError(
                f"{title}: its attributes or inputs are not valid "
                f"({type(error).__name__}: {str(error)[:200]}); export the model again."
            ) from error


# Characters of a title searched for in a message to see whether it already names the node; longer
# titles may be truncated in messages.
_NAMED_CHARS = 40
# Python errors that an op may raise on attributes or inputs of the wrong type.
_INVALID = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)

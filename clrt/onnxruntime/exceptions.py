"""Exceptions of ONNX Runtime, each also an error of clrt, and conversions of clrt's errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from clrt.errors import (
    CancelledError,
    ClrtError,
    DeviceError,
    InputError,
    KernelBuildError,
    ModelError,
    NumberError,
    OutOfMemoryError,
    ShapeError,
    UnsupportedError,
)


class StatusError(ClrtError):
    """Base of ONNX Runtime's errors; messages begin with the number and name of a status.

    Attributes:
        status: Number and name of the status, as in the message.
    """

    status: ClassVar[str] = "1 : FAIL"

    def __init__(self, message: str = "") -> None:
        super().__init__(f"[ONNXRuntimeError] : {self.status} : {message}")


class Fail(StatusError):
    """A run failed or was cancelled, or shapes within a model do not match."""


class InvalidArgument(StatusError, InputError):
    """An argument or an input does not match the model."""

    status = "2 : INVALID_ARGUMENT"


class WrongSizes(InvalidArgument):
    """Sizes of an input do not match the model; the message has a line per mismatched axis."""

    _message_lines = True


class WrongType(InvalidArgument, TypeError):
    """An argument has a type that the call does not accept."""


class NoSuchFile(StatusError, ModelError):
    """The model's file does not exist."""

    status = "3 : NO_SUCHFILE"


class NoModel(StatusError, ModelError):
    """ONNX Runtime's error for a missing model; clrt never raises it."""

    status = "4 : NO_MODEL"


class EngineError(StatusError):
    """ONNX Runtime's error for a failure of its engine; clrt never raises it."""

    status = "5 : ENGINE_ERROR"


class RuntimeException(StatusError, RuntimeError):
    """A run failed, for example out of memory, or a call has an invalid argument."""

    status = "6 : RUNTIME_EXCEPTION"


class InvalidProtobuf(StatusError, ModelError):
    """The file is not an ONNX file."""

    status = "7 : INVALID_PROTOBUF"


class ModelLoaded(StatusError):
    """ONNX Runtime's error for a session that has a model already; clrt never raises it."""

    status = "8 : MODEL_LOADED"


class NotImplemented(StatusError, UnsupportedError):
    """The model is valid, but needs a feature that clrt lacks."""

    status = "9 : NOT_IMPLEMENTED"


class InvalidGraph(StatusError, ModelError):
    """The model's graph is invalid."""

    status = "10 : INVALID_GRAPH"


class EPFail(StatusError, DeviceError):
    """The device that stands for an execution provider failed."""

    status = "11 : EP_FAIL"


class ModelLoadCanceled(StatusError, CancelledError):
    """Loading was cancelled by `SessionOptions.set_load_cancellation_flag`."""

    status = "12 : MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(StatusError):
    """ONNX Runtime's error for compilation that options forbid; clrt never raises it."""

    status = "13 : MODEL_REQUIRES_COMPILATION"


class NotFound(StatusError):
    """ONNX Runtime's error for a name under which nothing exists; clrt never raises it."""

    status = "14 : NOT_FOUND"


class DeviceReset(StatusError, DeviceError):
    """ONNX Runtime's error for a device that was lost or reset; clrt never raises it."""

    status = "15 : DEVICE_RESET"


# Error class of clrt and the class raised in its place; the first match counts.
_WHILE_RUNNING: tuple[tuple[type[ClrtError], type[StatusError]], ...] = (
    (CancelledError, Fail),
    (OutOfMemoryError, RuntimeException),
    (KernelBuildError, EPFail),
    (DeviceError, EPFail),
    (NumberError, InvalidArgument),
    (ShapeError, Fail),
    (InputError, InvalidArgument),
    (UnsupportedError, NotImplemented),
)
_WHILE_LOADING: tuple[tuple[type[ClrtError], type[StatusError]], ...] = (
    (NumberError, Fail),
    *_WHILE_RUNNING,
    (ModelError, InvalidGraph),
)


def of_run(error: ClrtError) -> ClrtError:
    """Converts an error of clrt during a run to the error that ONNX Runtime would raise."""
    return _translated(error, _WHILE_RUNNING)


def of_load(error: ClrtError) -> ClrtError:
    """Converts an error of clrt during loading to the error that ONNX Runtime would raise."""
    return _translated(error, _WHILE_LOADING)


def of_file(error: ClrtError, source: Path | bytes) -> ClrtError:
    """Converts an error of clrt in reading a model to the error that ONNX Runtime would raise.

    Args:
        source: Path of the file, or the model's bytes.

    Returns:
        `NoSuchFile`, `Fail` for an unknown opset, `InvalidProtobuf` or `InvalidArgument`.
    """
    if isinstance(source, Path) and not os.path.exists(source):
        return NoSuchFile(str(error))
    if isinstance(error, UnsupportedError):  # the opset is newer than the known ones
        return Fail(str(error))
    cls = InvalidArgument if error.__cause__ is None else InvalidProtobuf
    return cls(str(error))


def _translated(
    error: ClrtError, table: tuple[tuple[type[ClrtError], type[StatusError]], ...]
) -> ClrtError:
    if isinstance(error, StatusError):
        return error
    cls = next((to for of, to in table if isinstance(error, of)), Fail)
    return cls(str(error))

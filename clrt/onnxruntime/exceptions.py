"""The exceptions of ONNX Runtime, each an error of clrt too."""

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
    """An error with a status of ONNX Runtime, whose number and name its message begins with."""

    status: ClassVar[str] = "1 : FAIL"

    def __init__(self, message: str = "") -> None:
        super().__init__(f"[ONNXRuntimeError] : {self.status} : {message}")


class Fail(StatusError):
    """A run failed or was ended, or the parts of a model do not fit together."""


class InvalidArgument(StatusError, InputError):
    """An argument or an input does not fit the model."""

    status = "2 : INVALID_ARGUMENT"


class WrongSizes(InvalidArgument):
    """Sizes of an input do not fit; the message has a line for each, as in ONNX Runtime."""

    _lines = True


class WrongType(InvalidArgument, TypeError):
    """An argument is of a type that the call does not take."""


class NoSuchFile(StatusError, ModelError):
    """The model's file does not exist."""

    status = "3 : NO_SUCHFILE"


class NoModel(StatusError, ModelError):
    """There is no model."""

    status = "4 : NO_MODEL"


class EngineError(StatusError):
    """The engine failed."""

    status = "5 : ENGINE_ERROR"


class RuntimeException(StatusError, RuntimeError):
    """A run cannot go on: there is no memory, say."""

    status = "6 : RUNTIME_EXCEPTION"


class InvalidProtobuf(StatusError, ModelError):
    """The file is no ONNX file."""

    status = "7 : INVALID_PROTOBUF"


class ModelLoaded(StatusError):
    """The session has a model already."""

    status = "8 : MODEL_LOADED"


class NotImplemented(StatusError, UnsupportedError):
    """The model is valid, and clrt lacks something that it needs."""

    status = "9 : NOT_IMPLEMENTED"


class InvalidGraph(StatusError, ModelError):
    """The model is not valid."""

    status = "10 : INVALID_GRAPH"


class EPFail(StatusError, DeviceError):
    """The device, which clrt runs in the place of an execution provider, fails."""

    status = "11 : EP_FAIL"


class ModelLoadCanceled(StatusError, CancelledError):
    """`SessionOptions.set_load_cancellation_flag` was called."""

    status = "12 : MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(StatusError):
    """The model cannot run without being compiled, which its options forbid."""

    status = "13 : MODEL_REQUIRES_COMPILATION"


class NotFound(StatusError):
    """There is nothing of a name."""

    status = "14 : NOT_FOUND"


class DeviceReset(StatusError, DeviceError):
    """The device was lost."""

    status = "15 : DEVICE_RESET"


# The first that an error is of.
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
    """The error that a run raises for one of clrt's."""
    return _translated(error, _WHILE_RUNNING)


def of_load(error: ClrtError) -> ClrtError:
    """The error that loading raises for one of clrt's."""
    return _translated(error, _WHILE_LOADING)


def of_file(error: ClrtError, source: Path | bytes) -> ClrtError:
    """The error for a file that cannot be read."""
    if isinstance(source, Path) and not os.path.exists(source):
        return NoSuchFile(str(error))
    if isinstance(error, UnsupportedError):  # an opset that is newer than what is known
        return Fail(str(error))
    made = InvalidArgument if error.__cause__ is None else InvalidProtobuf
    return made(str(error))


def _translated(
    error: ClrtError, table: tuple[tuple[type[ClrtError], type[StatusError]], ...]
) -> ClrtError:
    if isinstance(error, StatusError):
        return error
    made = next((to for of, to in table if isinstance(error, of)), Fail)
    return made(str(error))

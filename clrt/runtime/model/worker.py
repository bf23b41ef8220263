"""A model in a process of its own: a driver that crashes or hangs does not end the application.

with Worker(clrt.load, "model.onnx", device="gpu") as worker:
    out = worker.run({"x": x})
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from clrt.errors import ClrtError, DeviceError, OutOfMemoryError, warn_user

# Seconds that a process has to end by itself before it is killed.
_PATIENCE_S = 5.0


class Worker:
    """Runs the methods of a model in another process, and on another device once that one fails.

    The process is started by multiprocessing's "spawn": the program has to have the usual
    `if __name__ == "__main__":`, and a frozen one calls `multiprocessing.freeze_support()` first.

    Args:
        make: What makes the model: `clrt.load`, `clrt.SentenceEncoder`, or another function that
            pickles and takes `device=`.
        args: Its arguments.
        device: As `clrt.load` takes it.
        fallback: The device for a new process where that of `device` crashes, hangs, or where the
            device is not there; None for none. A warning says so.
        timeout_s: Seconds after which a call counts as hanging; None for no limit. Loading, which
            compiles, has none.
        options: Its named arguments.

    Raises:
        DeviceError: Both devices fail.
        ClrtError: As `make`.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        *args: Any,
        device: str | int | None = None,
        fallback: str | int | None = "cpu",
        timeout_s: float | None = None,
        **options: Any,
    ) -> None:
        self._make = make, args, options
        self._device: str | int | None = device
        self._fallback = fallback
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._is_closed = False
        self._start_or_fall_back()

    @property
    def device(self) -> str | int | None:
        """The device that is asked for now: `device`, or `fallback` after a failure."""
        return self._device

    def run(self, *args: Any, **options: Any) -> Any:
        """As `call("run", …)`: `Model.run` in the other process."""
        return self.call("run", *args, **options)

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Calls a method of the model; after a crash once more, on the fallback.

        Returns:
            Its result, which has to pickle: arrays do, tensors on a device do not.

        Raises:
            DeviceError: The process ended or hung, and there is no other device.
            ClrtError: As the method.
        """
        with self._lock:
            if self._is_closed:
                raise ClrtError("The worker is closed; make a new one.")
            try:
                return self._ask((method, args, options), self._timeout_s)
            except _Ended as ended:
                self._fall_back(str(ended))
                try:
                    return self._ask((method, args, options), self._timeout_s)
                except _Ended as again:
                    raise DeviceError(f"{again}; there is no other device.") from again

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._is_closed = True
            self._stop()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _start_or_fall_back(self) -> None:
        try:
            self._start()
        except _Ended as ended:
            self._fall_back(str(ended))
        except OutOfMemoryError:
            raise
        except DeviceError as error:
            if self._fallback is None or self._fallback == self._device:
                raise
            self._fall_back(str(error).rstrip("."))

    def _start(self) -> None:
        """Starts the process and waits until it has loaded the model."""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        make, args, options = self._make
        self._ask((make, args, {**options, "device": self._device}), None)

    def _fall_back(self, reason: str) -> None:
        """Starts a process for the fallback.

        Raises:
            DeviceError: There is none, or its process ends, too.
        """
        self._stop()
        if self._fallback is None or self._fallback == self._device:
            self._is_closed = True
            raise DeviceError(f"{reason}; there is no other device.")
        warn_user(f"{reason}; the model goes on with device={self._fallback!r}.")
        self._device = self._fallback
        try:
            self._start()
        except _Ended as ended:
            self._is_closed = True
            raise DeviceError(f"{ended}; there is no other device.") from ended

    def _ask(self, request: object, timeout_s: float | None) -> Any:
        """Sends a request and returns the answer.

        Raises:
            _Ended: The process ended, or did not answer in time.
            ClrtError: What was raised there.
        """
        try:
            self._connection.send(request)
            if not self._connection.poll(timeout_s):
                raise _Ended(f"The process for device={self._device!r} hangs for {timeout_s} s")
            is_good, answer = self._connection.recv()
        except (EOFError, BrokenPipeError, ConnectionError) as error:
            self._process.join(_PATIENCE_S)
            how = _ending(self._process.exitcode)
            raise _Ended(f"The process for device={self._device!r} ended ({how})") from error
        if is_good:
            return answer
        raise _rebuilt(*answer)

    def _stop(self) -> None:
        self._connection.close()  # its loop ends
        self._process.join(_PATIENCE_S if self._is_closed else 0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class _Ended(Exception):
    """The process is gone or does not answer."""


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit status {code}"


def _serve(connection: Connection) -> None:
    """The other process: makes the model of the first request, and calls methods of it."""
    model: Any = None
    while True:
        try:
            what, args, options = connection.recv()
        except EOFError:
            return
        try:
            if model is None:
                model, answer = what(*args, **options), None
            else:
                answer = getattr(model, what)(*args, **options)
            sent = pickle.dumps((True, answer))
        except Exception as error:
            sent = pickle.dumps((False, _parts(error)))
        connection.send_bytes(sent)


def _parts(error: Exception) -> tuple[type[Exception], tuple[Any, ...], dict[str, Any]]:
    """An exception in parts that pickle: class, arguments, attributes."""
    attributes = {name: value for name, value in vars(error).items() if _pickles(value)}
    if isinstance(error, ClrtError) or _pickles((type(error), error.args)):
        return type(error), tuple(map(str, error.args)), attributes
    return RuntimeError, (f"{type(error).__name__}: {error}",), {}


def _pickles(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _rebuilt(kind: type[Exception], args: tuple[Any, ...], attributes: dict[str, Any]) -> Exception:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(attributes)
    return error

"""`Worker`: runs a model in another process, so that a driver's crash does not end this one.

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

# Maximum wait, in seconds, for a process to end before it is killed.
_PATIENCE_S = 5.0


class Worker:
    """Runs the methods of a model in another process, and switches to a fallback device on failure.

    The process is started by multiprocessing's "spawn": the program needs the usual
    `if __name__ == "__main__":`, and a frozen program calls `multiprocessing.freeze_support()`
    first.

    Args:
        make: Creates the model: `clrt.load`, `clrt.SentenceEncoder`, or another function that can
            be pickled and has a parameter `device`.
        args: Positional arguments of `make`.
        device: Device of the model, as for `clrt.load`: "auto", "cpu", "gpu", part of a name, or an
            index; None reads CLRT_DEVICE.
        fallback: Device for a new process, which is started with a warning if the first process
            crashes or hangs, or if `device` is absent. None for no fallback.
        timeout_s: Maximum duration of a call in seconds; None for no limit. Loading, which
            compiles, has no limit.
        options: Keyword arguments of `make`.

    Raises:
        DeviceError: `device` and `fallback` both fail.
        ClrtError: `make` raised it.
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
        """Requested device of the current process: `device`, or `fallback` after a failure."""
        return self._device

    def run(self, *args: Any, **options: Any) -> Any:
        """Calls the model's method `run` in the other process, and returns its result.

        After a crash, calls it once more on the fallback device.

        Raises:
            DeviceError: The process ended or hung, and there is no fallback device.
            ClrtError: The worker is closed, or `run` raised it.
        """
        return self.call("run", *args, **options)

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Calls a method of the model; after a crash, calls it once more on the fallback device.

        Args:
            method: Name of the method.
            args: Positional arguments of the method, which must pickle.
            options: Keyword arguments of the method, which must pickle.

        Returns:
            The method's result, which must pickle: arrays do, device tensors do not.

        Raises:
            DeviceError: The process ended or hung, and there is no fallback device.
            ClrtError: The worker is closed, or the method raised it.
        """
        with self._lock:
            if self._is_closed:
                raise ClrtError("The worker is closed; create a new one.")
            try:
                return self._ask((method, args, options), self._timeout_s)
            except _Ended as ended:
                self._fall_back(str(ended))
                try:
                    return self._ask((method, args, options), self._timeout_s)
                except _Ended as again:
                    raise DeviceError(f"{again}; there is no other device.") from again

    def close(self) -> None:
        """Ends the model's process; the worker cannot be used afterwards."""
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
        """Starts the process for the current device, and waits until it has loaded the model.

        Raises:
            _Ended: The process ended.
            ClrtError: Loading raised it.
        """
        context = multiprocessing.get_context("spawn")
        self._connection, child_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_end,), daemon=True)
        self._process.start()
        child_end.close()
        make, args, options = self._make
        self._ask((make, args, {**options, "device": self._device}), None)

    def _fall_back(self, reason: str) -> None:
        """Stops the process, warns, and starts a process for the fallback device.

        Args:
            reason: Why the process for the current device failed, for the messages.

        Raises:
            DeviceError: There is no fallback, or its process fails too.
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
        """Sends a request to the other process and returns its answer.

        Args:
            request: (function that creates the model, or name of a method; positional arguments;
                keyword arguments).
            timeout_s: Maximum wait for the answer in seconds; None for no limit.

        Raises:
            _Ended: The process ended, or did not answer in time.
            ClrtError: The error that the request raised in the process.
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
        self._connection.close()  # ends the loop of `_serve`
        self._process.join(_PATIENCE_S if self._is_closed else 0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class _Ended(Exception):
    """The worker's process ended or does not answer in time."""


def _ending(code: int | None) -> str:
    """Returns how a process ended: the signal's name, or its exit status."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit status {code}"


def _serve(connection: Connection) -> None:
    """Serves requests in the worker's process: the first creates the model, later ones call it.

    Returns once the other end of the connection is closed.
    """
    model: Any = None
    while True:
        try:
            target, args, options = connection.recv()
        except EOFError:
            return
        try:
            if model is None:
                model, answer = target(*args, **options), None
            else:
                answer = getattr(model, target)(*args, **options)
            message = pickle.dumps((True, answer))
        except Exception as error:
            message = pickle.dumps((False, _parts(error)))
        connection.send_bytes(message)


def _parts(error: Exception) -> tuple[type[Exception], tuple[Any, ...], dict[str, Any]]:
    """Splits an exception into picklable parts: (class, texts of arguments, attributes by name).

    An exception that cannot be pickled becomes a RuntimeError with its text.
    """
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
    """Recreates an exception from the parts that `_parts` returned.

    Does not call the constructor of the class, which may take other arguments.
    """
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(attributes)
    return error

"""Worker processes that answer requests in turn."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

Handler: TypeAlias = "Callable[[Any], Any]"

# Threads of the peer that had the turn before spin for a while before they sleep.
_SETTLE_SECONDS = 0.02
_JOIN_SECONDS = 30
# Not counted: after a pause of 0.1 s, PoCL's first 20 ms were at half speed (240 of 460 GFLOP/s).
WARM_SECONDS = 0.08


class WorkerError(RuntimeError):
    """A worker raised, or died; the message has its traceback or exit code."""


class TooLongError(WorkerError):
    """A worker took longer than it was given, and is gone."""


class Worker:
    """Process that answers one request at a time.

    Args:
        name: What tables call it.
        make: Called in the process with `args`; what it returns answers the requests. It and all
            that passes between the processes must pickle.

    Raises:
        WorkerError: `make` failed.
    """

    def __init__(self, name: str, make: Callable[..., Handler], *args: object) -> None:
        self.name = name
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, make, args), daemon=True)
        self._process.start()
        theirs.close()  # so that a worker that dies ends the wait for its answer
        self._answer()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: object, most_s: float | None = None) -> Any:
        """Returns the handler's answer.

        Args:
            most_s: Seconds after which the process is ended; None for as long as it takes.

        Raises:
            TooLongError: It took longer.
            WorkerError: The handler failed, or the process died.
        """
        self._pipe.send((request,))
        if most_s is not None and not self._pipe.poll(most_s):
            self._process.kill()
            raise TooLongError(f"{self.name} took more than {most_s:.0f} s.")
        return self._answer()

    def close(self) -> None:
        """Ends the process in the ordinary way, so that runtimes write what they keep."""
        with contextlib.suppress(OSError):  # it may have ended already
            self._pipe.send(())
        self._process.join(_JOIN_SECONDS)
        self._process.kill()

    def _answer(self) -> Any:
        try:
            is_fine, value = self._pipe.recv()
        except EOFError:
            self._process.join(_JOIN_SECONDS)
            code = self._process.exitcode
            raise WorkerError(f"The process of {self.name} ended with exit code {code}.") from None
        if not is_fine:
            raise WorkerError(f"The process of {self.name} failed:\n{value}")
        return value


def _serve(pipe: Connection, make: Callable[..., Handler], args: tuple[object, ...]) -> None:
    """Makes the handler, then answers requests until an empty one comes."""
    try:
        handler = make(*args)
        pipe.send((True, None))
        while message := pipe.recv():
            pipe.send((True, handler(message[0])))
    except Exception:
        pipe.send((False, traceback.format_exc()))


def call_apart(function: Callable[..., Any], *args: object, most_s: float | None = None) -> Any:
    """Returns the result of a function called in a new process.

    Args:
        most_s: Seconds after which the process is ended; None for as long as it takes.

    Raises:
        TooLongError: It took longer.
        WorkerError: It failed.
    """
    if multiprocessing.current_process().daemon:  # it is such a process, and may start none
        return function(*args)
    name = getattr(function, "__name__", type(function).__name__)
    with Worker(name, _make_call, function) as worker:
        return worker.ask(args, most_s)


def _make_call(function: Callable[..., Any]) -> Handler:
    return lambda args: function(*args)


@contextmanager
def open_workers(makers: dict[str, tuple[Any, ...]]) -> Iterator[list[Worker]]:
    """Workers by name, from `(make, *args)` each; all are closed at the end."""
    with ExitStack() as stack:
        yield [stack.enter_context(Worker(name, *maker)) for name, maker in makers.items()]


def take_turns(workers: Sequence[Worker], request: object, turns: int) -> dict[str, list[Any]]:
    """Each worker's answers to one request, a turn at a time, so that all see the same machine."""
    answers: dict[str, list[Any]] = {w.name: [] for w in workers}
    for _ in range(turns):
        for worker in workers:
            time.sleep(_SETTLE_SECONDS)
            answers[worker.name].append(worker.ask(request))
    return answers


def time_turn(action: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each call in one turn, after calls that are not counted."""
    repeat(action, WARM_SECONDS)
    return repeat(action, seconds)


def repeat(action: Callable[[], object], seconds: float) -> list[float]:
    """Calls until the time is over, at least once; gives the seconds of each call."""
    times: list[float] = []
    start = time.perf_counter()
    while not times or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return times


def median_ratio(own: Sequence[float], peer: Sequence[float]) -> float:
    """Returns the median over turns of own / peer."""
    return statistics.median(a / b for a, b in zip(own, peer, strict=True))

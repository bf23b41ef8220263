"""Python's cyclic garbage collector, which has nothing to find while a graph is made."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_LOCK = Lock()
# How many calls want it to rest, and whether it ran before the first of them.
_resting, _was_enabled = 0, False


def without_collector(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: the collector rests while the function runs, in whatever threads.

    It visits all objects again each time that their number has grown by a quarter, which takes a
    third of the time of loading a large model. A graph that grows leaves few cycles behind.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        _rest()
        try:
            return function(*args, **kwargs)
        finally:
            _go_on()

    return run


def _rest() -> None:
    global _resting, _was_enabled
    with _LOCK:
        if not _resting:
            _was_enabled = gc.isenabled()
            gc.disable()
        _resting += 1


def _go_on() -> None:
    global _resting
    with _LOCK:
        _resting -= 1
        if not _resting and _was_enabled:
            gc.enable()

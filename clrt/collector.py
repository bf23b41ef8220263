"""Python's cyclic garbage collector, which has nothing old to find while a graph is made."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_LOCK = Lock()
# More collections of young objects than there will ever be.
_NEVER = 1 << 30
# How many calls want no full collections, and after how many others one came before the first.
_resting, _usual = 0, _NEVER


def without_full_collections(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: the collector looks at young objects alone while the function runs.

    It would visit all objects again each time that their number has grown by a quarter, which takes
    a third of the time of loading a large model; and no other thread runs meanwhile, for 20 ms with
    50,000 objects. A graph that grows leaves few cycles behind. Not to collect at all would make
    the first collection afterwards as long. It holds for all threads.
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
    global _resting, _usual
    with _LOCK:
        if not _resting:
            young, older, _usual = gc.get_threshold()
            gc.set_threshold(young, older, _NEVER)
        _resting += 1


def _go_on() -> None:
    global _resting
    with _LOCK:
        _resting -= 1
        young, older, now = gc.get_threshold()
        if not _resting and now == _NEVER:  # the program has not set it meanwhile
            gc.set_threshold(young, older, _usual)

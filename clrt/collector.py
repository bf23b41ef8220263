"""Python's cyclic garbage collector, which has little to find while graphs and plans are made."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from functools import wraps
from threading import Lock
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
# More collections of young objects than there will ever be.
_NEVER = 1 << 30


class _Setting:
    """How the collector is for as long as any call wants it so, in whatever threads.

    Args:
        begin: Sets it; gives what was before.
        end: Takes that back.
    """

    def __init__(self, begin: Callable[[], Any], end: Callable[[Any], None]) -> None:
        self._begin, self._end = begin, end
        self._lock, self._wanted, self._before = Lock(), 0, None

    def around(self, function: Callable[P, T]) -> Callable[P, T]:
        """A function that wants it while it runs."""

        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._lock:
                if not self._wanted:
                    self._before = self._begin()
                self._wanted += 1
            try:
                return function(*args, **kwargs)
            finally:
                with self._lock:
                    self._wanted -= 1
                    if not self._wanted:
                        self._end(self._before)

        return run


def without_collector(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator of what is short, as planning is: the collector rests while the function runs.

    What it made and dropped then never counts as old, and full collections are fewer.
    """
    return _STOPPED.around(function)


def without_full_collections(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator of what is long, as loading is: the collector visits young objects alone.

    It would visit all objects again each time that their number has grown by a quarter, which takes
    a third of the time of loading a large model; and no other thread runs meanwhile, for 20 ms with
    50,000 objects. A graph that grows leaves few cycles behind. Not to collect at all would make
    the first collection afterwards as long.
    """
    return _YOUNG.around(function)


def _stop() -> bool:
    was_enabled = gc.isenabled()
    gc.disable()
    return was_enabled


def _go_on(was_enabled: bool) -> None:
    if was_enabled:
        gc.enable()


def _leave_old() -> int:
    young, older, usual = gc.get_threshold()
    gc.set_threshold(young, older, _NEVER)
    return usual


def _visit_old(usual: int) -> None:
    young, older, now = gc.get_threshold()
    if now == _NEVER:  # the program has not set it meanwhile
        gc.set_threshold(young, older, usual)


_STOPPED, _YOUNG = _Setting(_stop, _go_on), _Setting(_leave_old, _visit_old)


def import_module(name: str) -> ModuleType:
    """Imports a module; the collector visits what it defines once, and then has it for old.

    That stays, so that there is nothing to find. To collect while clrt is imported takes a tenth
    of the time; to collect nothing until it is there would leave all of it to be visited twice.
    """
    return _import_module(name, gc.isenabled())


@without_collector
def _import_module(name: str, collects: bool) -> ModuleType:
    module = importlib.import_module(name)
    if collects:
        gc.collect(1)
    return module

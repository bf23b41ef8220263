"""Python's cyclic garbage collector, which has little to find while graphs and plans are made."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from functools import wraps
from threading import RLock
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from clrt.util.active_calls import ActiveCall

P = ParamSpec("P")
T = TypeVar("T")
# More collections of young objects than there will ever be.
_NEVER = 1 << 30


class _Setting:
    """How the collector is for as long as any call wants it so, in whatever threads.

    Args:
        read: Gives how it is.
        begin: Sets it.
        end: Takes that back, given how it was.
    """

    def __init__(
        self, read: Callable[[], Any], begin: Callable[[], None], end: Callable[[Any], None]
    ) -> None:
        self._read, self._set, self._take_back = read, begin, end
        self._lock = RLock()
        # Whose calls want it, and what was before the first of them: a tuple of it, or None.
        self._wanted: list[ActiveCall] = []
        self._before: tuple[Any] | None = None

    def around(self, function: Callable[P, T]) -> Callable[P, T]:
        """A function that wants it while it runs."""

        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            call = ActiveCall()
            try:
                self._begin(call)
                return function(*args, **kwargs)
            finally:
                call.end()
                self._end()

        return run

    def _begin(self, call: ActiveCall) -> None:
        with self._lock:
            if self._before is None:
                self._before = (self._read(),)
            self._wanted.append(call)
            self._set()

    def _end(self) -> None:
        """Takes it back, unless a call wants it that goes on."""
        with self._lock:
            self._wanted = [call for call in self._wanted if not call.is_over]
            if not self._wanted and self._before is not None:
                self._take_back(*self._before)
                self._before = None


def gc_disabled(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator of what is short, as planning is: the collector rests while the function runs.

    What it made and dropped then never counts as old, and full collections are fewer.
    """
    return _STOPPED.around(function)


def gc_young_only(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator of what is long, as loading is: the collector visits young objects alone.

    It would visit all objects again each time that their number has grown by a quarter, which takes
    a third of the time of loading a large model; and no other thread runs meanwhile, for 20 ms with
    50,000 objects. A graph that grows leaves few cycles behind. Not to collect at all would make
    the first collection afterwards as long.
    """
    return _YOUNG.around(function)


def _go_on(was_enabled: bool) -> None:
    if was_enabled:
        gc.enable()


def _usual() -> int:
    return gc.get_threshold()[2]


def _leave_old() -> None:
    young, older, _ = gc.get_threshold()
    gc.set_threshold(young, older, _NEVER)


def _visit_old(usual: int) -> None:
    young, older, now = gc.get_threshold()
    if now == _NEVER:  # the program has not set it meanwhile
        gc.set_threshold(young, older, usual)


_STOPPED = _Setting(gc.isenabled, gc.disable, _go_on)
_YOUNG = _Setting(_usual, _leave_old, _visit_old)


def import_module(name: str) -> ModuleType:
    """Imports a module; the collector visits what it defines once, and then has it for old.

    That stays, so that there is nothing to find. To collect while clrt is imported takes a tenth
    of the time; to collect nothing until it is there would leave all of it to be visited twice.
    """
    return _import_module(name, gc.isenabled())


@gc_disabled
def _import_module(name: str, collects: bool) -> ModuleType:
    module = importlib.import_module(name)
    if collects:
        gc.collect(1)
    return module

"""Decorators that disable or limit Python's cyclic garbage collector.

Loading and planning create many objects and few cycles, so collections cost time and free little.
"""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Callable
from functools import wraps
from threading import RLock, get_ident
from types import ModuleType
from typing import Any, ParamSpec, Protocol, TypeVar

from clrt.util.active_calls import ActiveCall

P = ParamSpec("P")
T = TypeVar("T")
# Threshold of the oldest generation that is never reached, so that it is never collected.
_NEVER = 1 << 30


# Identifiers of threads in which decorators activate no setting: these threads pause inside of
# decorated functions, so that a setting would last too long.
SLICED_THREADS: set[int] = set()


class _Call(Protocol):
    """Owner of a setting, which is active until the owner's `is_over` is True."""

    @property
    def is_over(self) -> bool: ...

    @property
    def thread(self) -> int: ...


class _Setting:
    """A garbage-collector setting that is active while any decorated call runs, in any thread.

    Args:
        read: Returns the current state of the collector.
        begin: Activates the setting.
        end: Restores the state that `read` returned.
    """

    def __init__(
        self, read: Callable[[], Any], begin: Callable[[], None], end: Callable[[Any], None]
    ) -> None:
        self._read, self._activate, self._restore = read, begin, end
        self._lock = RLock()
        # Decorated calls in progress, and the collector's state before the first: (state,) or None.
        self._calls: list[_Call] = []
        self._before: tuple[Any] | None = None

    def around(self, function: Callable[P, T]) -> Callable[P, T]:
        """Returns `function` wrapped so that this setting is active while the function runs."""

        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            if get_ident() in SLICED_THREADS:
                return function(*args, **kwargs)
            call = ActiveCall()
            try:
                self.begin(call)
                return function(*args, **kwargs)
            finally:
                call.end()
                self.end()

        return run

    def begin(self, call: _Call) -> None:
        """Activates the setting until `call` is over and `end` is called.

        Saves the collector's state first, unless the setting is active already.
        """
        with self._lock:
            if self._before is None:
                self._before = (self._read(),)
            self._calls.append(call)
            self._activate()

    def after_fork_in_child(self, caller: int) -> None:
        """Forgets the calls of other threads in a forked child process, which lacks them.

        Args:
            caller: Identifier of the thread that forked.
        """
        self._lock = RLock()
        self._calls = [call for call in self._calls if call.thread == caller]
        self.end()

    def end(self) -> None:
        """Restores the collector's state, unless another decorated call is still running."""
        with self._lock:
            self._calls = [call for call in self._calls if not call.is_over]
            if not self._calls and self._before is not None:
                self._restore(*self._before)
                self._before = None


def gc_disabled(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator for short functions, such as planning: disables garbage collection while they run.

    Temporary objects then never reach the old generation, so full collections are rarer.
    """
    return _DISABLED.around(function)


def gc_young_only(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator for long functions, such as loading: disables collection of the old generation.

    Without the decorator, the collector would visit all objects again each time their number has
    grown by a quarter. With 50,000 objects, each visit stops all threads for 20 ms; together they
    take a third of the time of loading a large model. A growing graph leaves few cycles to collect.
    The two younger generations are still collected: else the first collection after the function
    would have to visit all objects that it created.
    """
    return YOUNG_ONLY.around(function)


def _enable_again(was_enabled: bool) -> None:
    if was_enabled:
        gc.enable()


def _oldest_threshold() -> int:
    return gc.get_threshold()[2]


def _disable_oldest() -> None:
    young, older, _ = gc.get_threshold()
    gc.set_threshold(young, older, _NEVER)


def _restore_oldest(threshold: int) -> None:
    young, older, now = gc.get_threshold()
    if now == _NEVER:  # the program has not changed it meanwhile
        gc.set_threshold(young, older, threshold)


_DISABLED = _Setting(gc.isenabled, gc.disable, _enable_again)
YOUNG_ONLY = _Setting(_oldest_threshold, _disable_oldest, _restore_oldest)


def _after_fork_in_child() -> None:
    SLICED_THREADS.clear()
    for setting in (_DISABLED, YOUNG_ONLY):
        setting.after_fork_in_child(get_ident())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def import_module(name: str) -> ModuleType:
    """Imports a module without garbage collection, then moves its objects to the old generation.

    Collections during an import take a tenth of its time and free nothing, since a module's objects
    stay alive. In the younger generations, later collections would visit each of them twice.
    Freezing and unfreezing moves them without a visit, which takes a collection 5 ms. Nothing moves
    if the collector is disabled. If the program has frozen objects, a collection moves new ones.
    """
    return _import_module(name, gc.isenabled())


@gc_disabled
def _import_module(name: str, move: bool) -> ModuleType:
    module = importlib.import_module(name)
    if move and hasattr(gc, "freeze") and not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
    elif move:
        gc.collect(1)
    return module

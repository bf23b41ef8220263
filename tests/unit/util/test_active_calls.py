"""Calls as owners of shared state that other threads release at any moment."""

from __future__ import annotations

from clrt.generation.scheduler import Scheduler
from clrt.runtime.execution.execution import Execution
from clrt.util.active_calls import ActiveCall, CallMutex


class _Contended(CallMutex):
    """A mutex whose owner, in another thread, releases it right after its state was read once."""

    @property
    def _holder(self) -> ActiveCall | None:  # type: ignore[override]
        holder, self._owner = self._owner, None
        return holder

    @_holder.setter
    def _holder(self, call: ActiveCall | None) -> None:
        self._owner = call


def _ended_call() -> ActiveCall:
    return ActiveCall()


def test_mutex_released_during_take_is_not_torn() -> None:
    for owner in (ActiveCall(), _ended_call()):
        mutex = _Contended()
        assert mutex.try_take(owner)
        assert not mutex.is_left
        assert mutex.try_take(owner)
        mutex.try_take(ActiveCall())
        assert not mutex.is_torn


def test_taking_mutex_of_ended_call_marks_it_torn() -> None:
    mutex = CallMutex()
    assert mutex.try_take(_ended_call())
    assert mutex.is_left
    assert mutex.try_take(ActiveCall())
    assert mutex.is_torn


class _Ending:
    """State that another thread releases right after its owner was read once."""

    _engine_lock = CallMutex()

    def __init__(self, call: ActiveCall) -> None:
        self._calls = [call]

    @property
    def call(self) -> ActiveCall | None:
        return self._calls.pop() if self._calls else None

    _holder = call


def test_owner_released_during_check_is_not_interrupted() -> None:
    for state in (Execution.is_left, Scheduler._is_interrupted):
        assert isinstance(state, property) and state.fget is not None
        assert not state.fget(_Ending(ActiveCall()))

"""The garbage collector rests while a decorated function runs, and goes on as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from clrt.collector import without_collector


@pytest.fixture(params=[True, False])
def enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


@without_collector
def states(depth: int) -> list[bool]:
    return [gc.isenabled(), *(states(depth - 1) if depth else ()), gc.isenabled()]


@without_collector
def fail() -> None:
    raise ValueError


def test_it_rests_and_goes_on_as_it_was(enabled: bool) -> None:
    assert not any(states(2))
    assert gc.isenabled() == enabled
    with pytest.raises(ValueError):
        fail()
    assert gc.isenabled() == enabled

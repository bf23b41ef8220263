"""Decorators that limit or disable garbage collection, and restore its state."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clrt.util.gc_control import gc_disabled, gc_young_only, import_module

USUAL = (50, 2, 3)


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)


def full_collections(grow: Any) -> int:
    """Counts full collections while `grow` allocates lasting objects."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    try:
        grow()
    finally:
        gc.callbacks.remove(note)
    assert seen, "the collector did not run at all"
    return seen.count(2)


def grow() -> list[list[Any]]:
    return [[] for _ in range(300_000)]


@gc_young_only
def nested(depth: int) -> None:
    if depth:
        nested(depth - 1)
    grow()


@gc_young_only
def fail() -> None:
    raise ValueError


@gc_young_only
def set_by_the_program() -> None:
    gc.set_threshold(70, 5, 6)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="collects old objects bit by bit")
def test_gc_young_only_skips_full_collections() -> None:
    assert full_collections(grow)
    assert full_collections(lambda: nested(2)) == 0
    assert gc.get_threshold() == USUAL
    assert full_collections(grow)


def test_gc_thresholds_are_restored_unless_program_sets_them() -> None:
    with pytest.raises(ValueError):
        fail()
    assert gc.get_threshold() == USUAL
    set_by_the_program()
    assert gc.get_threshold() == (70, 5, 6)


@pytest.fixture(params=[True, False])
def enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


@gc_disabled
def states(depth: int) -> list[bool]:
    return [gc.isenabled(), *(states(depth - 1) if depth else ()), gc.isenabled()]


@gc_disabled
def fail_within() -> None:
    raise ValueError


def test_gc_disabled_restores_previous_state(enabled: bool) -> None:
    assert not any(states(2))
    assert gc.isenabled() == enabled
    with pytest.raises(ValueError):
        fail_within()
    assert gc.isenabled() == enabled


@pytest.mark.parametrize("frozen", [False, True])
def test_imported_objects_move_to_old_generation(
    enabled: bool, frozen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "many_lists.py").write_text("made = [[] for _ in range(10_000)]")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "many_lists", raising=False)
    seen: list[int] = []
    gc.unfreeze()  # what the test run has frozen
    if frozen:
        gc.freeze()
    gc.callbacks.append(lambda phase, info: seen.append(info["generation"]))
    try:
        module = import_module("many_lists")
        is_old = any(each is module.made for each in gc.get_objects(generation=2))
        assert (gc.get_freeze_count() > 0) == frozen
    finally:
        gc.callbacks.pop()
        gc.unfreeze()
    assert gc.isenabled() == enabled
    assert len(module.made) == 10_000 and is_old == enabled
    assert (1 in seen) == (enabled and frozen)  # else no object is visited

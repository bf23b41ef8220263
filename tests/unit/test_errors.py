"""Reworded errors keep their attributes."""

from __future__ import annotations

import pytest

from clrt.errors import (
    ClrtError,
    KernelBuildError,
    OutOfMemoryError,
    ShapeError,
    UnsupportedError,
    reworded,
)


@pytest.mark.parametrize(
    "error",
    [
        ShapeError("small"),
        UnsupportedError("two ops", ("A", "B")),
        KernelBuildError("no", "line 1"),
        OutOfMemoryError("full", 8, 4, 2),
    ],
    ids=lambda e: type(e).__name__,
)
def test_reworded_error_keeps_type_and_attributes(error: ClrtError) -> None:
    message = str(error)
    again = reworded(error, f"node: {message}")
    assert type(again) is type(error)
    assert (str(again), str(error)) == (f"node: {message}", message)
    assert vars(again) == vars(error)

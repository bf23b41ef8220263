"""Environment variables: parsing and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from clrt.errors import ClrtError
from clrt.util import env_vars


@pytest.mark.parametrize("knob", env_vars.ALL, ids=lambda k: k.name)
@pytest.mark.parametrize("text", ["", " "])
def test_empty_variable_is_unset(
    monkeypatch: pytest.MonkeyPatch, knob: env_vars.EnvVar[object], text: str
) -> None:
    monkeypatch.setenv(knob.name, text)
    assert knob.get() == knob.default


@pytest.mark.parametrize(
    ("knob", "text", "expected"),
    [
        (env_vars.STRICT, " TRUE ", True),
        (env_vars.VERIFY, "on", True),
        (env_vars.MAX_PATCHES, "12", 12),
        (env_vars.DEVICE, "pocl", "pocl"),
    ],
)
def test_variable_values_are_parsed(
    monkeypatch: pytest.MonkeyPatch, knob: env_vars.EnvVar[object], text: str, expected: object
) -> None:
    monkeypatch.setenv(knob.name, text)
    assert knob.get() == expected


@pytest.mark.parametrize(
    ("knob", "text", "message"),
    [
        (env_vars.STRICT, "maybe", "CLRT_STRICT='maybe' is not valid: expected 0 or 1. 1 turns"),
        (
            env_vars.MAX_PATCHES,
            "few",
            "CLRT_MAX_PATCHES='few' is not valid: expected a whole number.",
        ),
    ],
)
def test_invalid_variable_values_are_refused(
    monkeypatch: pytest.MonkeyPatch, knob: env_vars.EnvVar[object], text: str, message: str
) -> None:
    monkeypatch.setenv(knob.name, text)
    with pytest.raises(ClrtError, match=f"^{message}"):
        knob.get()


def test_cache_dir_expands_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLRT_CACHE_DIR", "~/models/cache")
    assert env_vars.cache_dir() == Path.home() / "models" / "cache"

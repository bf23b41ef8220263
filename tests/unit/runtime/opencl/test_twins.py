"""PoCL's second device is the twin of the first, whatever the version calls their drivers."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from clrt.runtime.opencl import twins
from clrt.runtime.opencl.pocl_settings import pocl_configured


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (["pthread-EPYC"], [("pthread-EPYC", None)]),
        (["basic-EPYC", "pthread-EPYC"], [("pthread-EPYC", "basic-EPYC")]),
        (["cpu-minimal-znver3", "cpu-znver3"], [("cpu-znver3", "cpu-minimal-znver3")]),
        (["basic-EPYC"], [("basic-EPYC", None)]),  # of a user's POCL_DEVICES
        (["cpu-minimal-a", "cpu-a", "cpu-tbb-a"], [("cpu-tbb-a", "cpu-minimal-a")]),
        (["basic-a", "pthread-a", "pthread-a"], None),
        (["basic-a", "cpu-tbb-a", "NVIDIA-a"], None),
        (["Intel(R) Xeon(R)"], [("Intel(R) Xeon(R)", None)]),
        ([], []),
    ],
)
def test_twin_is_the_device_of_the_minimal_driver(names: list[str], pairs: Any) -> None:
    handles = [SimpleNamespace(name=name) for name in names]
    found = twins.split_twins(handles)
    wanted = [(name, None) for name in names] if pairs is None else pairs
    assert [(d.name, None if t is None else t.name) for d, t in found] == wanted


@pytest.mark.parametrize("reason", ["", "user", "setting", "nvidia", "platform"])
def test_both_drivers_are_asked_for_unless_there_is_a_reason_not_to(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twins.sys, "platform", "darwin" if reason == "platform" else "linux")
    monkeypatch.setattr(twins, "_NVIDIA", ("/" if reason == "nvidia" else "/no/such/device",))
    monkeypatch.delenv("POCL_DEVICES", raising=False)
    monkeypatch.setenv("CLRT_TWINS", "off" if reason == "setting" else "auto")
    if reason == "user":
        monkeypatch.setenv("POCL_DEVICES", "pthread")
    before = os.environ.get("POCL_DEVICES")
    with pocl_configured():
        asked = os.environ.get("POCL_DEVICES")
    assert os.environ.get("POCL_DEVICES") == before
    assert (asked != before) == (reason == "")
    assert reason or asked == "basic pthread tbb"

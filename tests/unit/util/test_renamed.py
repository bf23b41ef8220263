"""Former names of public attributes, methods, arguments and options."""

from __future__ import annotations

import pickle

import pytest

import clrt.audio
from clrt.audio.speech_options import TemperatureFallback
from clrt.errors import InputError
from clrt.plan.plan import Plan
from clrt.plan.steps import DeviceStep
from clrt.runtime.execution.run import Run
from clrt.runtime.profiling.timings import KernelSum, KernelTime
from clrt.tools.device_choice import DeviceChoice
from clrt.util.renamed import present_names, renamed, renamed_arguments


@pytest.mark.parametrize(
    ("cls", "former", "present"),
    [
        (Plan, "also", "precompiled_kernels"),
        (Plan, "contract", "device_io"),
        (Plan, "parts", "subviews"),
        (Plan, "places", "allocations"),
        (Plan, "statuses", "status_words"),
        (DeviceStep, "also", "precompiled_kernels"),
        (KernelSum, "floor_ns", "roofline_ns"),
        (KernelTime, "floor_ns", "roofline_ns"),
        (DeviceChoice, "remembered", "from_cache"),
        (Run, "wait_or_stop", "wait_or_cancel"),
        (TemperatureFallback, "logprob", "logprob_threshold"),
    ],
)
def test_deprecated_attribute_warns_and_returns_current_one(
    cls: type, former: str, present: str
) -> None:
    stand_in = type("StandIn", (), {present: 3})()
    with pytest.warns(DeprecationWarning, match=f"{former} is now called {present}"):
        assert vars(cls)[former].fget(stand_in) == 3


def test_deprecated_arguments_warn_and_are_accepted() -> None:
    with pytest.warns(DeprecationWarning, match="logprob_threshold"):
        made = TemperatureFallback(logprob=-2.0)  # type: ignore[call-arg]
    assert made == TemperatureFallback(logprob_threshold=-2.0)
    with pytest.warns(DeprecationWarning, match="TemperatureFallback"):
        assert clrt.audio.Fallback is TemperatureFallback
    with pytest.warns(DeprecationWarning, match="now called b"):
        assert present_names("f", {"a": "b"}, {"a": 1, "c": 2}) == {"b": 1, "c": 2}


def test_argument_under_both_names_is_refused() -> None:
    given = {"logprob": -2.0, "logprob_threshold": -1.0}
    with pytest.raises(InputError, match="former name"):
        TemperatureFallback(**given)  # type: ignore[arg-type]


@renamed_arguments(old="new")
@renamed(old="new")
class _Sample:
    def __init__(self, new: int) -> None:
        self.new = new


def test_pickle_with_deprecated_attribute_loads(recwarn: pytest.WarningsRecorder) -> None:
    before = _Sample(1)
    vars(before)["old"] = vars(before).pop("new")  # as a release before pickled it
    assert pickle.loads(pickle.dumps(before)).new == 1
    assert not recwarn.list

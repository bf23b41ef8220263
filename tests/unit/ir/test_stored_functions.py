"""Functions and constants of stored plans, by text."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from clrt.ir.stored_functions import function_of, text_of
from clrt.ir.symbolic_trace import ShapeTrace, untraced
from clrt.kernels.conv_gpu import ConvGpuCosts, best_split
from clrt.kernels.resample_tables import SamplingRule, sampling_table


def test_function_with_constants_is_found_by_its_text() -> None:
    rule = SamplingRule(mode="linear", scale=1.5, double=True).constants
    function = partial(sampling_table, kind="weights", by_taps=True, **rule)
    text = text_of(function)
    assert np.array_equal(function_of(text)(4, 6), function(4, 6))


def test_local_function_has_no_text() -> None:
    assert text_of(lambda size: np.zeros(size)) == ""
    assert text_of(np.zeros) == ""
    assert text_of(partial(sampling_table, kind="no name", by_taps=False)) == ""


@pytest.mark.parametrize(
    "text",
    [
        "os:system",
        "clrt.kernels.resample_tables:sampling_taps",
        "clrt.kernels.none:f",
        'clrt.kernels.resample_tables:sampling_table{"kind": {"class": "subprocess:Popen"}}',
    ],
)
def test_text_of_other_functions_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no (function|class)"):
        function_of(text)


def test_trace_with_thresholds_is_stored() -> None:
    trace = ShapeTrace({"m": 640, "n": 320})
    m, n = trace.start().values()
    costs = ConvGpuCosts(**{name: 3 for name in list(ConvGpuCosts.declared())[:1]})
    sizes = (m, n, 1, 9, 64, 1000, 16, 128, 128)
    split = best_split(*sizes, costs=costs, join_cycles=700)
    formulas = [trace.formula(number) for number in split]
    again = ShapeTrace.from_stored(trace.to_stored())
    for at in ({"m": 640, "n": 320}, {"m": 17, "n": 4096}):
        mine, theirs = trace.evaluate(at), again.evaluate(at)
        assert mine is not None and theirs is not None
        assert [theirs.numbers[i] for i in formulas] == [mine.numbers[i] for i in formulas]
    assert untraced(split[0]) >= 0

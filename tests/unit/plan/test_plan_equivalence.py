"""Plan comparison, and detection of templates that differ from planning."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.ir.graph import Graph, Value
from clrt.ir.op import TensorType, TracedConstant
from clrt.models.sources import read_graph
from clrt.ops.vision import resample_launches
from clrt.ops.vision.resample import AxisSampling
from clrt.plan.plan import Plan
from clrt.plan.plan_equivalence import plans_equivalent
from clrt.plan.specialise import specialise
from clrt.plan.template import PlanTemplate
from clrt.plan.trace_plan import trace_plan
from clrt.runtime.execution.template_cache import Templates
from tests.models.onnx_text import parsed
from tests.passes.helpers import graph_of
from tests.plans import plan


def resized(scale: float = 2.0) -> Graph:
    return read_graph(
        parsed(
            f"""g (float[1, n] x) => (float[1, m] y) <float[2] s = {{1.0, {scale}}}>
            {{ y = Resize<mode = "nearest">(x, , s) }}"""
        )
    )


def planned(n: int, scale: float = 2.0) -> Plan:
    return plan(specialise(resized(scale), {"n": n}))


def test_plans_of_same_graph_and_size_are_equivalent() -> None:
    assert plans_equivalent(planned(5), planned(5))
    assert not plans_equivalent(planned(5), planned(6))
    assert not plans_equivalent(planned(5), planned(5, 3.0))


def test_folded_weights_are_compared_by_elements() -> None:
    def folding(last: float) -> Plan:
        body = f"""
          const %w: float32[2,2] = [[1.0, 2.0], [3.0, {last}]]
          %t: float32[2,2] = Transpose{{perm=[1, 0]}}(%w)
          %y: float32[B,2] = MatMul(%x, %t)
        """
        return plan(specialise(graph_of(body, "%x: float32[B,2]"), {"B": 3}))

    assert any(layout for _, layout in folding(4.0).uploads)  # a weight is packed
    assert plans_equivalent(folding(4.0), folding(4.0))
    assert not plans_equivalent(folding(4.0), folding(5.0))


def test_template_without_complete_trace_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = resized()

    def give(templates: Templates, n: int) -> bool:
        bindings = {"n": n}
        if templates.plan("g", bindings) is not None:
            return True

        def make() -> Plan:
            return plan(specialise(graph, bindings))

        def trace() -> PlanTemplate | None:
            return trace_plan(graph, bindings, {}, {}, plan)

        if templates.learn("g", bindings, make, trace) is not None:
            return True
        templates.begin("g", bindings, make())
        return False

    sound = Templates(1 << 30)
    assert [give(sound, n) for n in (5, 6, 7, 6, 7)] == [False, True, True, True, True]
    real = resample_launches._table
    calls = []

    def table(sampling: AxisSampling, kind: str, by_taps: bool = False) -> Value:
        calls.append(kind)
        known = real(sampling, kind, by_taps).type.known_elements
        array = known.array if isinstance(known, TracedConstant) else known
        assert isinstance(array, np.ndarray)
        # As if it were made of something that was lost.
        return Value(kind, TensorType.of(array + len(calls)))

    monkeypatch.setattr(resample_launches, "_table", table)
    unsound = Templates(1 << 30)
    assert not any(give(unsound, n) for n in (5, 6, 7, 6, 7))

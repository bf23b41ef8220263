"""Planning takes time in proportion to the size of a graph."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from clrt.device.caps import DeviceCaps
from clrt.kernels.spec import Launch
from clrt.models.sources import read_graph
from clrt.passes.device_pipeline import prepare
from clrt.plan import make_plan as planning
from clrt.plan.steps import PlanStep, launches_of
from tests.harness import plan_graph
from tests.models.onnx_text import parsed

CPU = DeviceCaps("Test", "test", "Test", "1", "cpu", compute_units=2)
FUNCTIONS = ("Tanh", "Exp", "Erf", "Sqrt", "Sigmoid", "Sin", "Cos", "Atan")


def test_launches_are_listed_as_often_with_many_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, kernels = [], []
    for functions in (FUNCTIONS[:2], FUNCTIONS):
        nodes = ""
        for i, function in enumerate(functions):
            nodes += f"u{i} = {function} (v{i})\nv{i + 1} = ReduceSum <keepdims=1> (u{i}, axes)\n"
        text = f"g (float[4, 4] v0) => (float[a, b] v{len(functions)}) <int64[1] axes = {{1}}>"
        graph = read_graph(parsed(f"{text} {{ {nodes} }}"))
        prepare(graph, CPU)
        calls: list[int] = []

        def counted(steps: Sequence[PlanStep], calls: list[int] = calls) -> list[Launch]:
            calls.append(1)
            return launches_of(steps)

        with monkeypatch.context() as patch:
            patch.setattr(planning, "launches_of", counted)
            kernels.append(len(set(plan_graph(graph, CPU).kernels)))
        counts.append(len(calls))
    assert kernels[0] < kernels[1]
    assert counts[0] == counts[1]

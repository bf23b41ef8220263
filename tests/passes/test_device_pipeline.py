"""Device-specific passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clrt
from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.models.onnx.export.exporter import save_model
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.device_pipeline import DEVICE_PASSES, prepare
from clrt.passes.pipeline import optimize
from tests.passes.helpers import assert_same_results, canonical, graph_of, random_inputs

LAYER = """const %w: float32[64,64] = ...
const %n: float32[64,64] = ...
%h: float32[B,64] = MatMul(%x, %w)
%y: float32[B,64] = MatMul(%h, %n)"""


def _layer() -> Graph:
    graph = graph_of(LAYER, "%x: float32[B,64]")
    for value in graph.constants():
        if value.name == "w":
            numbers = value.numbers
            assert numbers is not None
            numbers[...] = numbers.astype(np.float16)
    optimize(graph)
    return graph


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_device_passes_narrow_float16_exact_weight(kind: str) -> None:
    graph, caps = _layer(), DeviceCaps("p", kind, "v", "1", kind)
    assert {n.arg(1).dtype for n in graph.nodes} == {DType.FLOAT32}
    feeds = random_inputs(graph)
    before = evaluate(graph, feeds)
    report = prepare(graph, caps)
    assert report.patches == 1 and len(report.records) == sum(p.is_for(caps) for p in DEVICE_PASSES)
    assert [n.arg(1).dtype for n in graph.nodes] == [DType.FLOAT16, DType.FLOAT32]
    assert_same_results(before, evaluate(graph, feeds))
    text = canonical(graph)
    assert not prepare(graph, caps).patches
    assert canonical(graph) == text


def test_load_report_lists_device_passes_by_optimize_level(tmp_path: Path) -> None:
    path = tmp_path / "layer.onnx"
    save_model(_layer(), path)
    with clrt.load(path, device="cpu") as model:
        assert "narrow_weights" in {r.name for r in model.report.records}
    with clrt.load(path, device="cpu", optimize_level=1) as model:
        assert "narrow_weights" not in {r.name for r in model.report.records}

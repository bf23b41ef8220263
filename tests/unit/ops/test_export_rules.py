"""Export decompositions of clrt's own ops compared with the ops' references."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from clrt.ops.base import Op
from clrt.ops.decompositions.export_rules.general import check_decomposable, decompose_all
from clrt.ops.decompositions.registry import DECOMPOSITIONS, DecompositionStage
from clrt.ops.ml.decision_trees import DecisionTrees
from clrt.ops.reference_interpreter import evaluate
from tests.harness import sample_graph
from tests.ops.samples import Sample, samples


def _samples() -> Iterator[tuple[str, Sample]]:
    # The trees become an op that clrt has not; see test_onnx_exporter.
    keys = (key for audience, key in DECOMPOSITIONS if audience is DecompositionStage.EXPORT)
    for cls in (key for key in keys if isinstance(key, type) and key is not DecisionTrees):
        for k, sample in enumerate(samples(cls)):
            # One of a few is enough: samples are about the tails of kernels.
            if k % 5 == 0 or len(sample.inputs) > 3:
                yield f"{cls.__name__}-{k}", sample


@pytest.mark.parametrize("sample", [pytest.param(s, id=name) for name, s in _samples()])
def test_decomposed_op_matches_reference(sample: Sample) -> None:
    graph = sample_graph(sample)
    feeds = {v.name: sample.inputs[int(v.name[1:])] for v in graph.inputs}
    check_decomposable(graph)
    parts = decompose_all(graph)
    assert all(isinstance(n.op, Op) and n.op.domain != "clrt" for n in parts.nodes)
    (found,), (wanted,) = (evaluate(g, feeds).values() for g in (parts, graph))
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    tolerance = 1e-5 if wanted.dtype.itemsize > 2 else 1e-2
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance
    )

"""The whole pipeline on models: patterns fused, results equal, number of calls bounded."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

import numpy as np
import onnx
import pytest

from clrt.errors import UnsupportedError
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.models.onnx.importer import import_model
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.pipeline import optimize
from tests.models import fixtures
from tests.passes.helpers import assert_same_results, random_inputs

SIZES = {"batch": 2, "sequence": 7}
# Nodes besides products, attentions and normalisations; what each family has more than BERT.
OTHERS = {"minilm": 7, "gpt2": 14, "gpt2_nomask": 35, "mpnet": 18, "roberta_classifier": 13}


def noisy(name: str) -> onnx.ModelProto:
    """A stripped MiniLM with small random weights."""
    proto = onnx.load(fixtures.DATA / f"{name}.onnx")
    recipes = json.loads({p.key: p.value for p in proto.metadata_props}[fixtures.REFILL_KEY])
    noise = np.random.default_rng(0)
    for tensor in proto.graph.initializer:
        if tensor.name in recipes:
            array = noise.standard_normal(tuple(tensor.dims), dtype=np.float32) * 0.05
            tensor.raw_data = np.asarray(array, "<f4").tobytes()
    return proto


def load(name: str) -> Graph:
    proto = noisy(name) if name.startswith("minilm") else fixtures.load_family(name)
    try:
        return import_model(proto)
    except UnsupportedError as error:
        pytest.skip(str(error))


def feeds_of(graph: Graph) -> dict[str, Array]:
    """Random inputs, a mask with padding, and the two token types."""
    feeds = random_inputs(graph, SIZES)
    if "token_type_ids" in feeds:
        feeds["token_type_ids"] %= 2
    if "attention_mask" in feeds:
        feeds["attention_mask"][:] = 1
        feeds["attention_mask"][0, -3:] = 0
    return feeds


T = TypeVar("T")


def counting_calls(work: Callable[[], T]) -> tuple[T, int]:
    """What some work gives, and how many calls of Python functions it takes on any machine."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        return work(), calls
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("name", [*fixtures.minilm_names(), *fixtures.family_names()])
def test_exported_encoders_fuse_completely_with_equal_results(name: str) -> None:
    graph = load(name)
    feeds = feeds_of(graph)
    before = evaluate(graph, feeds)
    imported = len(graph.nodes)
    report, calls = counting_calls(lambda: optimize(graph))
    assert_same_results(before, evaluate(graph, feeds))

    family = name.rpartition("_")[0]
    layers = 6 if family == "minilm" else 2
    counts = Counter(n.op.name for n in graph.nodes)
    assert counts["FusedAttention"] == layers
    assert not {"Softmax", "Erf", "Tanh", "MatMul", "Gemm", "ReduceMean"} & counts.keys()
    # One merged projection, the output projection and two products of the feed-forward part;
    # besides, the head, the pooler or ALBERT's embedding.
    assert 4 * layers <= counts["FusedMatMul"] <= 4 * layers + 2
    assert 2 * layers <= counts["LayerNormalization"] <= 2 * layers + 2
    main = ("FusedAttention", "FusedMatMul", "LayerNormalization")
    others = sum(c for op, c in counts.items() if op not in main)
    assert others <= OTHERS.get(family, 8), counts
    assert not [m for m in report.misses if m[0] in ("fuse_attention", "fuse_layer_norm")]
    # It takes 550 to 1430 a node, whatever the model's size.
    assert calls < 3000 * imported


@pytest.mark.parametrize("name", ["bert_torchscript17", "gpt2_dynamo20"])
def test_pipeline_is_idempotent(name: str) -> None:
    graph = load(name)
    optimize(graph)
    count = len(graph.nodes)
    report = optimize(graph)
    assert report.patches == 0 and len(graph.nodes) == count


def test_graph_is_equivalent_at_any_patch_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = feeds_of(load("bert_eager_torchscript17"))
    expected = evaluate(load("bert_eager_torchscript17"), feeds)
    for limit in range(0, 170, 13):
        monkeypatch.setenv("CLRT_MAX_PATCHES", str(limit))
        graph = load("bert_eager_torchscript17")
        assert optimize(graph).patches <= limit
        assert_same_results(expected, evaluate(graph, feeds))

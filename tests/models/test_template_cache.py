"""Plans instantiated from templates of whole models equal fresh plans."""

from __future__ import annotations

import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Graph
from clrt.models.sources import read_graph
from clrt.passes.device_pipeline import prepare
from clrt.passes.pipeline import optimize
from clrt.runtime.execution.signature import symbol_places
from tests.models.decoders import decoder
from tests.models.fixtures import family_names, load_family, load_minilm, minilm_names
from tests.models.oracle import model_folder
from tests.plans import count_alike

CPU = DeviceCaps("Test", "test", "Test", "1", "cpu", compute_units=2)
# Batch and sequence; a template is good for what runs the same kernels.
FEW = ((2, 17), (2, 18), (4, 9))
MORE = ((4, 66), (6, 69), (5, 72))


def graph_of(name: str) -> Graph:
    minilm = name in minilm_names()
    graph = read_graph(load_minilm(name, model_folder()) if minilm else load_family(name))
    optimize(graph)
    prepare(graph, CPU)
    return graph


@pytest.mark.parametrize("name", [*family_names(), *minilm_names()])
def test_template_plans_equal_fresh_plans(name: str) -> None:
    graph = graph_of(name)
    symbols = sorted(symbol_places(graph))
    assert symbols in (["batch"], ["batch", "sequence"])
    for shapes in (FEW, MORE):
        sizes = [dict(zip(("batch", "sequence"), s, strict=True)) for s in shapes]
        assert count_alike(graph, [{k: s[k] for k in symbols} for s in sizes]) == len(sizes)


@pytest.mark.parametrize("past", [20, 300])
def test_template_plans_of_growing_cache_equal_fresh_plans(past: int) -> None:
    graph = read_graph(decoder(2))
    optimize(graph)
    prepare(graph, CPU)
    lengths = [past, past + 1, past + 2, past * 4]
    sizes = [{"batch": 1, "sequence": 1, "past": n, "total": n + 1} for n in lengths]
    assert count_alike(graph, sizes) == len(sizes)

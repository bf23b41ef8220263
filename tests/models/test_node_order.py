"""The order of independent nodes in a file does not change launches."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
import onnx
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dims import match_symbols
from clrt.ir.graph import Graph
from clrt.kernels.spec import BufferArg
from clrt.kernels.tuning_records import record_for
from clrt.models.sources import read_graph
from clrt.passes.device_pipeline import prepare
from clrt.passes.pipeline import optimize
from clrt.plan.make_plan import make_plan
from clrt.plan.specialise import specialise
from clrt.plan.steps import Region
from tests.models.fixtures import load_family, load_minilm
from tests.models.oracle import model_folder

CPU = DeviceCaps("Test", "test", "Test", "1", "cpu", compute_units=2)
SHAPES = ((1, 7), (3, 40))  # where few rows make launches fewer, and where they do not
ORDERS, FILE_ORDERS = 25, 3
NAMES = ("minilm_dynamo20", "bert_dynamo20", "gpt2_torchscript17")


def random_order(reads: Sequence[set[int]], rng: np.random.Generator) -> list[int]:
    """Returns node indices in a random topological order."""
    left, order = [set(r) for r in reads], list[int]()
    ready = [i for i, r in enumerate(left) if not r]
    while ready:
        done = ready.pop(int(rng.integers(len(ready))))
        order.append(done)
        for i, waits in enumerate(left):
            if done in waits:
                waits.remove(done)
                ready += [] if waits else [i]
    assert len(order) == len(reads)
    return order


def launches(graph: Graph) -> list[Counter[Hashable]]:
    """Returns the kernels, global sizes and scalars that a graph launches at each of SHAPES."""
    found = []
    for shape in SHAPES:
        sizes: dict[str, int] = {}
        for value in graph.inputs:
            sizes.update(match_symbols(value.shape or (), shape))
        plan = make_plan(specialise(graph, sizes), CPU, lambda kernel: record_for(kernel, CPU))
        assert any(isinstance(s, Region) for s in plan.steps)
        every = [x for s in plan.steps for x in getattr(s, "launches", ())]
        scalars = (tuple(a for a in x.args if not isinstance(a, BufferArg)) for x in every)
        parts = zip(every, scalars, strict=True)
        found.append(Counter[Hashable]((x.kernel, x.global_size, s) for x, s in parts))
    return found


def imported(model: onnx.ModelProto) -> Graph:
    graph = read_graph(model)
    optimize(graph)
    prepare(graph, CPU)
    return graph


@pytest.mark.lengthy
@pytest.mark.parametrize("name", NAMES)
def test_node_order_changes_no_launch(name: str) -> None:
    minilm = name.startswith("minilm")
    model = load_minilm(name, model_folder()) if minilm else load_family(name)
    graph = imported(model)
    expected, rng = launches(graph), np.random.default_rng(1)
    nodes = list(graph.nodes)
    places = {n: i for i, n in enumerate(nodes)}
    producers = [{v.producer for v in n.inputs if v is not None} for n in nodes]
    reads = [{places[p] for p in some if p is not None} for some in producers]
    for _ in range(ORDERS):
        graph.nodes = [nodes[i] for i in random_order(reads, rng)]
        assert launches(graph) == expected
    listed = list(model.graph.node)
    made = {name: i for i, n in enumerate(listed) for name in n.output}
    reads = [{made[v] for v in n.input if v in made} for n in listed]
    for _ in range(FILE_ORDERS):
        del model.graph.node[:]
        model.graph.node.extend(listed[i] for i in random_order(reads, rng))
        assert launches(imported(model)) == expected
        gc.collect()  # a graph is a circle, and this one holds 90 MB

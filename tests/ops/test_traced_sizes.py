"""Planning with traced sizes: the plan of one size is valid for others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from clrt.errors import ClrtError
from clrt.ir.dims import symbol
from clrt.ir.graph import Graph
from clrt.ir.op import TensorType
from clrt.ir.symbolic_trace import ShapeTrace
from clrt.ops import REGISTRY
from clrt.ops.movement.common import fresh_dims
from clrt.plan.specialise import specialise_to_break
from tests.ops.sample_plans import sample_graph
from tests.ops.samples import Sample, samples
from tests.plans import plan

# What is launched depends on the sizes themselves: matrices of these sizes, steps in time.
PINNING = {"Det", "GRU", "Inverse", "LSTM", "RNN", "UpdateCache"}
# Of each op.
MOST_SAMPLES = 25


def sized_graph(sample: Sample) -> tuple[Graph, dict[str, int]] | None:
    """Returns a one-node graph whose first input has symbolic dims, and the sample's sizes.

    None if planning reads elements of that input.
    """
    graph = sample_graph(sample)
    first = graph.nodes[0].inputs[0] if graph.nodes[0].inputs else None
    if first is None or first.is_constant:
        return None
    sizes = {f"d{i}": int(n) for i, n in enumerate(first.dims)}
    first.type = TensorType(first.dtype, tuple(map(symbol, sizes)))
    for y in graph.outputs:
        y.symbolic_shape = fresh_dims(y.type.rank or 0)
        y.type = TensorType(y.dtype, None)
    return graph, sizes


def sized_graphs() -> Iterator[tuple[str, Graph, dict[str, int]]]:
    for cls in REGISTRY.all_classes().values():
        for sample in islice(samples(cls), MOST_SAMPLES):
            found = sized_graph(sample)
            if found is not None:
                yield cls.name, *found


def test_op_planning_does_not_pin_traced_sizes() -> None:
    pins: dict[str, set[str]] = {}
    traced = 0
    for name, graph, sizes in sized_graphs():
        trace = ShapeTrace(sizes)
        try:
            first, graph_break = specialise_to_break(graph, trace.start(), {}, {}, ())
            if graph_break is None:
                plan(first)
        except ClrtError:
            continue
        traced += 1
        if trace.pinned_at:
            pins.setdefault(name, set()).update(trace.pinned_at)
    assert traced > 2000
    assert not {name: places for name, places in pins.items() if name not in PINNING}

"""Ops plan with traced sizes: what they make of one size serves other ones, too."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from clrt.errors import ClrtError
from clrt.ir.dims import symbol
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.ir.traced import Trace
from clrt.ops import REGISTRY
from clrt.ops.base import Op
from clrt.ops.movement.movement import fresh_dims
from clrt.plan.specialise import specialise_to_break
from tests.ops.sample_plans import sample_values
from tests.ops.samples import Sample, samples
from tests.plans import plan

# What is launched depends on the sizes themselves: matrices of these sizes, steps in time.
PINNING = {"Det", "GRU", "Inverse", "LSTM", "RNN", "UpdateCache"}
# Of each op.
MOST_SAMPLES = 25


def sized_graph(sample: Sample) -> tuple[Graph, dict[str, int]] | None:
    """A graph of one node whose first input has any sizes, and those of the sample.

    None where the node reads elements of it to be planned.
    """
    assert isinstance(sample.op, Op)
    values = sample_values(sample)
    first = values[0] if values else None
    if first is None or first.is_constant:
        return None
    types = sample.op.infer_with_data([None if v is None else v.type for v in values])
    sizes = {f"d{i}": int(n) for i, n in enumerate(first.dims)}
    names = tuple(symbol(name) for name in sizes)
    values[0] = Value("x0", TensorType(first.dtype, names))
    outputs = [
        Value(f"y{i}", TensorType(t.dtype, None), symbolic=fresh_dims(t.rank or 0))
        for i, t in enumerate(types)
    ]
    inputs = [v for v in values if v is not None and not v.is_constant]
    return Graph("sample", inputs, outputs, [Node("node", sample.op, values, outputs)]), sizes


def sized_graphs() -> Iterator[tuple[str, Graph, dict[str, int]]]:
    for cls in REGISTRY.classes.values():
        for sample in islice(samples(cls), MOST_SAMPLES):
            found = sized_graph(sample)
            if found is not None:
                yield cls.name, *found


def test_no_op_pins_its_sizes() -> None:
    pins: dict[str, set[str]] = {}
    traced = 0
    for name, graph, sizes in sized_graphs():
        trace = Trace(sizes)
        try:
            first, graph_break = specialise_to_break(graph, trace.start(), {}, {}, ())
            if graph_break is None:
                plan(first)
        except ClrtError:
            continue
        traced += 1
        if trace.pins:
            pins.setdefault(name, set()).update(trace.pins)
    assert traced > 2000
    assert not {name: places for name, places in pins.items() if name not in PINNING}

"""Compares pass results with expected graphs in the IR's text form, ignoring value names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from clrt.ir.dims import Expr
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array
from clrt.ir.parse import parse_graph
from clrt.ir.text import elided, print_graph
from clrt.ir.verify import verify
from clrt.ops import REGISTRY
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.driver import Pass, PassOutcome, PassRunner, infer_types

SIZES = {"B": 2, "S": 5, "T": 3}


def graph_of(body: str, inputs: str, outputs: str = "%y") -> Graph:
    """A graph from its inputs, its lines and its outputs, with inferred types."""
    text = f'graph "g" ({inputs}) {{\n{body}\nreturn {outputs}\n}}\n'
    graph = parse_graph(text, REGISTRY)
    infer_types(graph)
    return graph


def canonical(graph: Graph) -> str:
    """The text of a graph with values and nodes numbered from the outputs, elements shown."""
    nodes: dict[Node, None] = {}
    names: dict[Value, str] = {v: v.name for v in graph.inputs}
    made: dict[Value, Value] = {}

    def visit(value: Value | None) -> None:
        if value is None or value in names:
            return
        if value.producer is not None and value.producer not in nodes:
            for source in value.producer.inputs:
                visit(source)
            nodes[value.producer] = None
            for output in value.producer.outputs:
                names[output] = f"v{len(names)}"
        elif value.producer is None:
            names[value] = f"v{len(names)}"

    for value in graph.outputs:
        visit(value)
    for value, name in names.items():
        made[value] = Value(name, value.type)
    copies = [
        Node(
            f"n{k}",
            n.op,
            [None if v is None else made[v] for v in n.inputs],
            [made[v] for v in n.outputs],
        )
        for k, n in enumerate(nodes)
    ]
    inputs, outputs = [made[v] for v in graph.inputs], [made[v] for v in graph.outputs]
    return print_graph(Graph("g", inputs, outputs, copies, ["y"] * len(outputs)), elided(64))


def random_inputs(
    graph: Graph, sizes: Mapping[str, int] = SIZES, seed: int = 0
) -> dict[str, Array]:
    """An array for each input."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in graph.inputs:
        assert value.shape is not None
        shape = tuple(sizes[str(d)] if isinstance(d, Expr) else d for d in value.shape)
        if value.dtype is DType.BOOL:
            feeds[value.name] = rng.integers(0, 2, shape).astype(bool)
        elif value.dtype.is_int:
            feeds[value.name] = rng.integers(0, 4, shape).astype(value.dtype.numpy)
        else:
            feeds[value.name] = rng.standard_normal(shape).astype(value.dtype.numpy)
    return feeds


def assert_same_results(before: Mapping[str, Array], after: Mapping[str, Array]) -> None:
    """Equal to a few units in the last place of the largest element."""
    assert before.keys() == after.keys()
    for name, expected in before.items():
        actual = after[name]
        assert actual.shape == expected.shape and actual.dtype == expected.dtype
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=1.0)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6 * largest)


def apply(passes: Pass | Sequence[Pass], graph: Graph) -> PassOutcome:
    """Runs passes, checks numbers, invariants and idempotence; returns the last record."""
    feeds = random_inputs(graph)
    before = evaluate(graph, feeds)
    session = PassRunner(graph)
    record = PassOutcome("")
    for pass_ in [passes] if isinstance(passes, Pass) else passes:
        record = session.run(pass_)
        assert not session.run(pass_).hits, f"{pass_.name} is not idempotent"
    verify(graph)
    assert_same_results(before, evaluate(graph, feeds))
    return record


def check(passes: Pass | Sequence[Pass], inputs: str, before: str, expected: str) -> Graph:
    """Asserts that passes turn one graph into another."""
    graph = graph_of(before, inputs)
    apply(passes, graph)
    assert canonical(graph) == canonical(graph_of(expected, inputs))
    return graph


def check_miss(pass_: Pass, inputs: str, before: str, reason: str) -> None:
    """Asserts that a pass leaves a graph alone and says why."""
    graph = graph_of(before, inputs)
    text = canonical(graph)
    record = apply(pass_, graph)
    assert canonical(graph) == text
    assert not record.hits
    assert [r for _, r in record.misses if reason in r], record.misses

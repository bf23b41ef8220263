"""Sinking of Transpose below Reshape: which axes may move, against the references."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from clrt.ir.graph import Graph
from clrt.ops.movement.transpose import Transpose
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.driver import PassRunner
from clrt.passes.sink_transpose import SinkTranspose
from tests.passes.helpers import assert_same_results, graph_of, random_inputs

VIEWS = {
    (2, 3, 4): [(2, 12), (6, 4), (24,), (2, 3, 2, 2), (4, 6), (1, 2, 3, 4, 1), (2, 1, 3, 4)],
    (6, 1, 4): [(6, 4), (2, 3, 4), (6, 2, 2), (24,), (6, 1, 1, 4), (3, 8)],
    (0, 3, 4): [(0, 12), (0, 4), (3, 0)],
}
CASES = [
    (shape, perm, view)
    for shape, views in VIEWS.items()
    for perm, view in product(permutations(range(3)), views)
    if perm != (0, 1, 2)
]


def sunk(shape: tuple[int, ...], perm: tuple[int, ...], view: tuple[int, ...]) -> tuple[Graph, int]:
    """A view of what is transposed, behind the pass, and how often the pass took it."""
    source = [shape[perm.index(a)] for a in range(len(perm))]
    x, t, y = (",".join(map(str, s)) for s in (source, shape, view))
    graph = graph_of(
        f"""%t: float32[{t}] = Transpose{{perm={list(perm)}}}(%x)
        const %s: int64[{len(view)}] = {list(view)}
        %y: float32[{y}] = Reshape{{allowzero=1}}(%t, %s)""",
        f"%x: float32[{x}]",
        "%y",
    )
    feeds = random_inputs(graph, {})
    before = evaluate(graph, feeds)
    hits = len(PassRunner(graph).run(SinkTranspose()).hits)
    assert_same_results(before, evaluate(graph, feeds))
    return graph, hits


@pytest.mark.parametrize(("shape", "perm", "view"), CASES)
def test_sunk_transpose_keeps_results(
    shape: tuple[int, ...], perm: tuple[int, ...], view: tuple[int, ...]
) -> None:
    graph, hits = sunk(shape, perm, view)
    assert isinstance(graph.nodes[-1].op, Transpose) == bool(hits)


def test_transpose_sinks_if_view_keeps_permuted_axes() -> None:
    assert sunk((2, 3, 4), (0, 2, 1), (2, 3, 2, 2))[1] == 1
    assert sunk((2, 3, 4), (1, 2, 0), (6, 4))[1] == 1  # 2 and 3 lie beside each other
    assert sunk((2, 3, 4), (0, 2, 1), (2, 12))[1] == 0
    assert sunk((2, 3, 4), (0, 2, 1), (4, 6))[1] == 0


def test_attention_head_transpose_is_not_sunk() -> None:
    body = """const %s: int64[3] = [0, 0, -1]
      %t: float32[N,S,4,8] = Transpose{perm=[0, 2, 1, 3]}(%x)
      %y: float32[N,S,32] = Reshape(%t, %s)"""
    graph = graph_of(body, "%x: float32[N,4,S,8]", "%y")
    assert not PassRunner(graph).run(SinkTranspose()).hits


def test_transpose_with_other_readers_is_not_sunk() -> None:
    body = """const %s: int64[3] = [0, 0, -1]
      %t: float32[N,8,H,W] = Transpose{perm=[0, 3, 1, 2]}(%x)
      %y: float32[N,8,H*W] = Reshape(%t, %s)"""
    graph = graph_of(body, "%x: float32[N,H,W,8]", "%y, %t")
    assert not PassRunner(graph).run(SinkTranspose()).hits

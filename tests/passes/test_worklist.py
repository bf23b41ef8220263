"""The pass worklist: a pass visits only nodes that changed since its last run."""

from __future__ import annotations

from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.pointwise.table import Abs, Neg, Relu
from clrt.passes.driver import GraphView, Match, Miss, Pass, PassRunner
from clrt.passes.pipeline import optimize
from tests.passes.helpers import graph_of
from tests.passes.test_driver import CHAIN, ReluToAbs, X


class Watch(Pass):
    """Notes the nodes that it is asked about."""

    name = "watch"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        self.seen.append(node.name)
        return Miss("just looking", node)

    def rewrite(self, match: Match) -> Patch:
        raise AssertionError("it matches nothing")


class WatchLocal(Watch):
    is_local = True


class WatchAbs(Watch):
    required_op_classes = (Neg,)

    def may_match(self, op: type[IrOp]) -> bool:
        return op is Abs


class LastReluToAbs(ReluToAbs):
    """The Relu that is an output -> Abs."""

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        is_last = isinstance(node.op, Relu) and view.is_output(node.output)
        return Match(view, node) if is_last else None


def test_unchanged_graph_is_not_visited_again() -> None:
    session, watch = PassRunner(graph_of(CHAIN, X)), Watch()
    first = session.run(watch)
    again = session.run(watch)
    assert len(watch.seen) == len(first.misses) == 3
    assert again.misses == first.misses and not again.hits
    session.run(LastReluToAbs())
    session.run(watch)
    assert len(watch.seen) == 6


def test_equal_pass_skips_nodes_visited_before() -> None:
    seen: list[str] = []

    class Shared(Pass):
        name = "shared"

        def __init__(self, setting: int) -> None:
            self.setting = setting

        def match(self, view: GraphView, node: Node) -> Match | Miss | None:
            seen.append(node.name)
            return None

        def rewrite(self, match: Match) -> Patch:
            raise AssertionError("it matches nothing")

    session = PassRunner(graph_of(CHAIN, X))
    for setting, count in ((1, 3), (1, 3), (2, 6)):
        session.run(Shared(setting))
        assert len(seen) == count


def test_local_pass_visits_nodes_touched_by_patch() -> None:
    session, watch = PassRunner(graph_of(CHAIN, X)), WatchLocal()
    session.run(watch)
    watch.seen.clear()
    session.run(LastReluToAbs())
    record = session.run(watch)
    # The new node, and the one that others began to read.
    assert sorted(watch.seen) == ["b", "y/relu_to_abs.0"]
    assert [node for node, _ in record.misses] == ["Relu 'a'", "Relu 'b'", "Abs 'y/relu_to_abs.0'"]


def test_pass_runs_only_if_wanted_and_needed_ops_exist() -> None:
    alone = WatchAbs()
    PassRunner(graph_of(CHAIN.replace("Relu(%b)", "Abs(%b)"), X)).run(alone)
    assert not alone.seen
    beside = WatchAbs()
    text = CHAIN.replace("Relu(%b)", "Abs(%b)").replace("Relu(%x)", "Neg(%x)")
    PassRunner(graph_of(text, X)).run(beside)
    assert beside.seen == ["y"]


def test_deep_equal_chains_are_merged() -> None:
    deep = 100
    lines = ["%a0: float32[B,S] = Neg(%x)", "%c0: float32[B,S] = Neg(%i)"]
    lines.insert(0, "%i: float32[B,S] = Identity(%x)")  # gone before the chains are compared again
    for k in range(deep):
        lines += [f"%{c}{k + 1}: float32[B,S] = {'Exp' if k % 2 else 'Sin'}(%{c}{k})" for c in "ac"]
    lines.append(f"%y: float32[B,S] = MatMul(%a{deep}, %c{deep})")
    graph = graph_of("\n".join(lines).replace("[B,S]", "[S,S]"), X.replace("[B,S]", "[S,S]"))
    optimize(graph, 1)
    assert len(graph.nodes) == deep + 2

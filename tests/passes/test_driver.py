"""The pass driver: patches, limits, checks and reports."""

from __future__ import annotations

import pytest

from clrt.errors import PassError
from clrt.ir.graph import Node, Patch
from clrt.ir.text import print_graph
from clrt.ir.verify import verify
from clrt.ops.pointwise.table import Abs, Neg, Relu
from clrt.passes.driver import GraphView, Match, Miss, Pass, run_pass
from clrt.passes.pipeline import optimize
from tests.passes.helpers import canonical, graph_of

X = "%x: float32[B,S]"
CHAIN = """%a: float32[B,S] = Relu(%x)
%b: float32[B,S] = Relu(%a)
%y: float32[B,S] = Relu(%b)"""


class ReluToAbs(Pass):
    """Relu -> Abs."""

    name = "relu_to_abs"

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if isinstance(node.op, Abs):
            return Miss("it is an Abs", node)
        return Match(view, node) if isinstance(node.op, Relu) else None

    def rewrite(self, match: Match) -> Patch:
        build = match.builder(self.name)
        value = build.add(Abs(), match.root.arg(0))
        return build.patch({match.root.output: value})


class Endless(ReluToAbs):
    """Relu -> Relu."""

    name = "endless"

    def rewrite(self, match: Match) -> Patch:
        build = match.builder(self.name)
        value = build.add(Relu(), match.root.arg(0))
        return build.patch({match.root.output: value})


class ReadsReplacedNode(ReluToAbs):
    """y = Relu(x) -> y = Neg(y)."""

    name = "cyclic"

    def rewrite(self, match: Match) -> Patch:
        build = match.builder(self.name)
        value = build.add(Neg(), match.root.output)
        return build.patch({match.root.output: value})


class ReplacesWithInput(ReluToAbs):
    """y = Relu(x) -> the graph's last input, regardless of its type."""

    name = "wrong_type"

    def rewrite(self, match: Match) -> Patch:
        return Patch({match.root.output: match.view.graph.inputs[-1]})


class ReplacesWithLaterNode(ReluToAbs):
    """The first of two equal nodes -> the last, which stands behind readers of the first."""

    name = "replaces_by_later"

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        last = [n for n in view.graph.nodes if isinstance(n.op, Relu)][-1]
        return (
            Match(view, node, payload=last)
            if isinstance(node.op, Relu) and node is not last
            else None
        )

    def rewrite(self, match: Match) -> Patch:
        return Patch({match.root.output: match.payload.output})


class DuplicatesProducer(ReluToAbs):
    """Claims the producer of its operand, too, which others may read."""

    name = "leaves_work"

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        producer = node.inputs[0].producer if node.inputs[0] else None
        if not isinstance(node.op, Relu) or producer is None:
            return None
        return Match(view, node, replaced_nodes=[producer, node])

    def rewrite(self, match: Match) -> Patch:
        build = match.builder(self.name)
        value = build.add(Abs(), match.replaced_nodes[0].arg(0))
        return build.patch({match.root.output: value})


def test_patched_nodes_record_pass_and_origins() -> None:
    graph = graph_of(CHAIN.replace("%b: float32[B,S] = Relu(%a)", "%b: float32[B,S] = Neg(%a)"), X)
    record = run_pass(graph, ReluToAbs())
    assert [n.op.name for n in graph.nodes] == ["Abs", "Neg", "Abs"]
    assert [n.made_by for n in graph.nodes] == ["relu_to_abs", "", "relu_to_abs"]
    assert graph.nodes[0].origins == ("a",) and graph.nodes[0].name == "a/relu_to_abs.0"
    assert graph.output_names == ["y"]
    assert len(record.hits) == 2 and len(record.misses) == 2


def test_max_patches_limits_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLRT_MAX_PATCHES", "2")
    graph = graph_of(CHAIN, X)
    run_pass(graph, ReluToAbs())
    assert [n.op.name for n in graph.nodes] == ["Abs", "Abs", "Relu"]
    graph = graph_of(CHAIN + "\n", X)
    report = optimize(graph)
    assert report.patches <= 2


def test_endless_pass_raises_pass_error() -> None:
    with pytest.raises(PassError, match="no fixpoint"):
        run_pass(graph_of(CHAIN, X), Endless())


def test_patch_that_makes_a_cycle_is_refused() -> None:
    with pytest.raises(PassError, match="which its patch replaces"):
        run_pass(graph_of(CHAIN, X), ReadsReplacedNode())


def test_patch_changing_a_type_is_refused() -> None:
    with pytest.raises(PassError, match="types differ"):
        run_pass(graph_of(CHAIN, X + ", %z: float32[S]"), ReplacesWithInput())


def test_patch_that_duplicates_shared_node_is_skipped() -> None:
    graph = graph_of(
        "%a: float32[B,S] = Neg(%x) %b: float32[B,S] = Relu(%a) %y: float32[B,S] = Add(%a, %b)", X
    )
    before = print_graph(graph)
    record = run_pass(graph, DuplicatesProducer())
    assert print_graph(graph) == before
    assert not record.hits
    ((_, reason),) = record.misses
    assert "used elsewhere" in reason


def test_explain_passes_prints_hits_and_misses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLRT_EXPLAIN_PASSES", "1")
    run_pass(graph_of(CHAIN, X), ReluToAbs())
    text = capsys.readouterr().err
    assert "relu_to_abs: 3 hits" in text and "+ Relu 'a'" in text and "it is an Abs" in text


def test_patch_keeps_nodes_in_topological_order() -> None:
    graph = graph_of(
        "%a: float32[B,S] = Relu(%x)\n%c: float32[B,S] = Neg(%a)\n%b: float32[B,S] = Relu(%x)\n"
        "%y: float32[B,S] = Add(%c, %b)",
        X,
        "%y",
    )
    run_pass(graph, ReplacesWithLaterNode())
    verify(graph)


def test_optimize_level_selects_passes() -> None:
    for level, names in ((0, ["Identity", "Neg", "Exp"]), (1, ["Neg", "Exp"]), (2, ["Fused"])):
        graph = graph_of(
            """%i: float32[B,S] = Identity(%x)
            %n: float32[B,S] = Neg(%i)
            %y: float32[B,S] = Exp(%n)""",
            X,
        )
        report = optimize(graph, level)
        assert [n.op.name for n in graph.nodes] == names
        text = canonical(graph)
        optimize(graph, level)
        assert canonical(graph) == text, "the pipeline is not idempotent"
        assert not report.misses and ("remove_identity" in str(report)) == (level > 0)


def test_optimized_identity_graph_returns_its_input() -> None:
    graph = graph_of("%y: float32[B,S] = Identity(%x)", X)
    optimize(graph)
    assert not graph.nodes and graph.outputs == graph.inputs and graph.output_names == ["y"]

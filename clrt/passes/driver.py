"""Runs passes over a graph: the only place where a graph changes after import.

A pass matches nodes and answers with patches; the driver checks and applies them at once, keeps
who reads what up to date, drops what became dead, and repeats until nothing matches. A pass that
saw the graph as it is does not look again.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar

from clrt.errors import ClrtError, PassError
from clrt.ir.builder import Builder
from clrt.ir.dims import Dim, infer_symbols
from clrt.ir.graph import Graph, Names, Node, Patch, Value
from clrt.ir.op import IrOp, TensorType
from clrt.ir.verify import verify, verify_types
from clrt.ops.base import Op, all_graphs
from clrt.passes.report import PassRecord, PassReport
from clrt.passes.worklist import Worklist
from clrt.util import env_vars
from clrt.util.host_limits import FoldBudget

MAX_SWEEPS = 64
# Reads the worklist as passes do.
_INFERENCE = "infer_types"


@dataclass(frozen=True, eq=False)
class Miss:
    """A near miss: the node looked like the pass's business, and why it was not."""

    reason: str
    node: Node


@dataclass(eq=False)
class Match:
    """What a pass found.

    Attributes:
        view: The graph.
        root: The node that was matched.
        replaced_nodes: The nodes that the rewrite makes superfluous (the root among them); where
            one of them would still be needed afterwards, the driver leaves all as it is.
        traversed_nodes: Nodes that were looked through and that others may still need.
        payload: What the pass wants to tell its `rewrite`.
    """

    view: GraphView
    root: Node
    replaced_nodes: list[Node] = field(default_factory=list)
    traversed_nodes: list[Node] = field(default_factory=list)
    payload: Any = None

    def __post_init__(self) -> None:
        self.replaced_nodes = self.replaced_nodes or [self.root]

    def builder(self, pass_name: str) -> Builder:
        """Makes what takes the place of the match."""
        return Builder(self.view.names, self.root.name, pass_name)


class Pass(ABC):
    """A stateless graph pass.

    Class attributes:
        name: verb_noun; also the `made_by` of the nodes it makes.
        visits_outputs_first: Sweep from the outputs to the inputs.
        is_local: A match depends on the node alone: its op, what it reads, the types of its inputs
            and outputs, and who reads these. Only nodes of which that changed are matched again.
        required_op_classes: Classes of ops of which the graph must hold one each for any match.
    """

    name: ClassVar[str]
    visits_outputs_first: ClassVar[bool] = False
    is_local: ClassVar[bool] = False
    required_op_classes: ClassVar[tuple[type[IrOp], ...]] = ()

    def may_match(self, op: type[IrOp]) -> bool:
        """Whether a node of that class may match; asked once per class and run of passes."""
        return True

    @abstractmethod
    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        """A match at `node`, a near miss, or None where the node is not the pass's business."""

    @abstractmethod
    def rewrite(self, match: Match) -> Patch:
        """The change that a match asks for."""


class GraphView:
    """A graph with its users at hand, kept up to date while patches are applied.

    Attributes:
        memo: What a pass remembers over its runs on the graph (the pass itself is stateless).
        budget: What is left for folding constants, over all passes.
        worklist: The nodes that are part of the graph, and those that changed.
        counts: How many nodes are of each class of ops.
    """

    def __init__(self, graph: Graph, budget: FoldBudget | None = None) -> None:
        self.graph = graph
        self.budget = fold_budget(graph) if budget is None else budget
        self.memo: dict[Hashable, Any] = {}
        self.worklist = Worklist(graph.nodes)
        self.counts = Counter(type(n.op) for n in graph.nodes)
        self._users: dict[Value, dict[Node, None]] = {}
        self._outputs: dict[Value, int] = {}
        self._added: list[Node] = []
        self._dead = 0
        self._replaced = False
        self._told: dict[str, Dim] = {}
        self._names: Names | None = None
        for node in graph.nodes:
            self._read(node)
        for value in graph.outputs:
            self._outputs[value] = self._outputs.get(value, 0) + 1

    @property
    def names(self) -> Names:
        """Names that no value and no node of the graph has."""
        if self._names is None:
            taken = {v.name for v in self.graph.values()}
            self._names = Names(taken | {n.name for n in self.graph.nodes})
        return self._names

    def users(self, value: Value) -> list[Node]:
        """The nodes that read a value, each once."""
        return list(self._users.get(value, ()))

    def user_count(self, value: Value) -> int:
        """How many nodes read a value."""
        return len(self._users.get(value, ()))

    def is_output(self, value: Value) -> bool:
        """Whether a value is an output of the graph."""
        return value in self._outputs

    def only_user(self, value: Value) -> Node | None:
        """The one node that reads a value which nothing else needs."""
        users = self._users.get(value, {})
        return next(iter(users)) if len(users) == 1 and value not in self._outputs else None

    def stays_inside(self, value: Value, nodes: Container[Node]) -> bool:
        """Whether nothing but `nodes` needs a value."""
        return value not in self._outputs and all(u in nodes for u in self._users.get(value, ()))

    def dead_after(self, match: Match, patch: Patch) -> set[Node] | str:
        """The nodes that nothing needs behind a patch; a reason where one of the match stays."""
        read = {v for n in patch.nodes for v in n.inputs} | set(patch.replace.values())
        dead: set[Node] = set()
        pending = dict.fromkeys(reversed(match.replaced_nodes))
        while done := [n for n in pending if not self._keeps(n, read, patch, dead)]:
            dead.update(done)
            behind = (v.producer for n in done for v in n.inputs if v is not None)
            pending = {n: None for n in (*pending, *behind) if n is not None and n not in dead}
        for value in (v for n in match.replaced_nodes if n not in dead for v in n.outputs):
            if value not in patch.replace:
                what = "one of its operands" if value in read else "used elsewhere"
                return f"'{value.name}' is {what}, too"
        return dead

    def _keeps(self, node: Node, read: Set[Value | None], patch: Patch, dead: Set[Node]) -> bool:
        """Whether something behind a patch needs a node."""
        return any(
            v in read or v in self._outputs or not self._users.get(v, {}).keys() <= dead
            for v in node.outputs
            if v not in patch.replace
        )

    def is_alive(self, node: Node) -> bool:
        """Whether a node is (still) part of the graph."""
        return node in self.worklist.places

    def apply(self, patch: Patch, match: Match, dead: Set[Node], pass_name: str) -> None:
        """Checks a patch, changes the graph and drops the `dead`: those `superfluous` for it.

        Raises:
            PassError: The patch breaks a rule; see `_check`.
        """
        _check(patch, match, self)
        origins = tuple(dict.fromkeys(o for n in match.replaced_nodes for o in n.origins))
        for node in patch.nodes:
            node.made_by, node.origins = pass_name, origins or node.origins
            self.worklist.add(node, match.root)
            self.counts[type(node.op)] += 1
            self._added.append(node)
            self._read(node)
        for old, new in patch.replace.items():
            self._replace(old, new)
            self._replaced = True
        self._dead += len(dead)
        for node in dead:
            self.worklist.drop(node)
            self.counts[type(node.op)] -= 1
            for value in node.inputs:
                if value is not None:
                    self._users.get(value, {}).pop(node, None)
                    if value.producer not in dead:
                        self.worklist.touch(value.producer)
            node.inputs = []  # others may hold the node, but not what it read

    def _replace(self, old: Value, new: Value) -> None:
        new.aliases += (old.name, *old.aliases)
        for user in self._users.pop(old, {}):
            user.inputs = [new if v is old else v for v in user.inputs]
            self._users.setdefault(new, {})[user] = None
            self.worklist.touch(user)
        if old in self._outputs:
            self._outputs[new] = self._outputs.get(new, 0) + self._outputs.pop(old)
            self.graph.outputs = [new if v is old else v for v in self.graph.outputs]
        self.worklist.touch(new.producer)
        self._told |= _resolved_dims(old.type, new.type)

    def flush_changes(self) -> None:
        """Brings the graph up to date: no dead nodes, topological order, sizes that were told."""
        if self._added or self._dead:
            nodes = [*self.graph.nodes, *self._added]
            self.graph.nodes = [n for n in nodes if n in self.worklist.places]
        # Passes see new nodes of one place in any order: what takes the place of another value may
        # come behind its readers.
        if self._added or self._replaced:
            self.graph.sort()
        self._added, self._dead, self._replaced = [], 0, False
        self._bind(self._told)
        self._told = {}

    def _bind(self, told: dict[str, Dim]) -> None:
        self.graph.bind(told)
        for node in self.graph.nodes if told else ():
            self.worklist.touch(node)

    def infer_types(self) -> None:
        """Infers output types again, in order: folded inputs may tell more than was known before.

        A node is asked where the type of an input changed since it was last asked.
        """
        told: dict[str, Dim] = {}
        again = self.worklist.has_begun(_INFERENCE)
        if not again:
            self.worklist.begin(_INFERENCE)
        for node in self.worklist.due(_INFERENCE) if again else self.graph.nodes:
            assert isinstance(node.op, Op)
            types = node.op.infer_with_data(node.input_types)
            for value, type_ in zip(node.outputs, types, strict=False):
                merged = value.type.intersect(type_)
                told |= (facts := _resolved_dims(value.type, type_))
                if merged is not value.type or facts:
                    value.type = merged
                    self.worklist.touch(node)
                    for user in self._users.get(value, ()):
                        self.worklist.touch(user)
        self._bind(told)

    def _read(self, node: Node) -> None:
        for value in node.inputs:
            if value is not None:
                users = self._users.get(value)
                if users is None:
                    self._users[value] = {node: None}
                else:
                    users[node] = None


def fold_budget(graph: Graph) -> FoldBudget:
    """What folding may add to a graph and to those in it."""
    constants = {v for g in all_graphs(graph) for v in g.constants()}
    return FoldBudget.of(sum(v.nbytes for v in constants))


def _resolved_dims(old: TensorType, new: TensorType) -> dict[str, Dim]:
    """What unknown dims are. The graph needs it everywhere: what tells it may go.

    Dims that the file names are left alone, since what it declares may be wrong.
    """
    return infer_symbols(old.shape or (), new.shape or ())


def _check(patch: Patch, match: Match, view: GraphView) -> None:
    """Raises PassError where a patch changes a type, or reads what it replaces or what is gone."""
    produced = {v for n in match.replaced_nodes for v in n.outputs}
    made = {v for n in patch.nodes for v in n.outputs}
    for old, new in patch.replace.items():
        if old not in produced:
            raise PassError(f"patch of {match.root} replaces {old!r}, which it did not match")
        if new in patch.replace:
            raise PassError(f"patch of {match.root} replaces {old!r} by {new!r}, itself replaced")
        if not old.type.is_compatible(new.type):
            raise PassError(f"patch of {match.root} replaces {old!r} by {new!r}: types differ")
    for node in patch.nodes:
        for value in (v for v in node.inputs if v is not None):
            if value in patch.replace:
                raise PassError(f"{node}, new, reads {value!r}, which its patch replaces")
            alive = value.producer is None or view.is_alive(value.producer) or value in made
            if not alive:
                raise PassError(f"{node}, new, reads {value!r}, which is no longer computed")
        if node not in patch.typed:
            verify_types(node)


class PassRunner:
    """Runs passes on one graph and keeps the report.

    Attributes:
        report: What happened so far.
        instead: Passes that run in the place of those of their names.

    Args:
        budget: What is left for folding constants; one for a graph and all in it.
    """

    def __init__(self, graph: Graph, *instead: Pass, budget: FoldBudget | None = None) -> None:
        self.graph = graph
        self.instead = {p.name: p for p in instead}
        self.report = PassReport()
        self._view = GraphView(graph, budget)
        self._memos: dict[Pass, dict[Hashable, Any]] = {}
        # By pass, of nodes that it need not look at again, too.
        self._misses: dict[Pass, dict[Node, tuple[str, str]]] = {}

    def run(self, pass_: Pass) -> PassRecord:
        """Applies a pass until it matches nowhere.

        Raises:
            PassError: A patch breaks a rule, or no fixpoint comes.
        """
        start = time.perf_counter()
        pass_ = self.instead.get(pass_.name, pass_)
        record = PassRecord(pass_.name)
        self._view.memo = self._memos.setdefault(pass_, {})
        for _ in range(MAX_SWEEPS):
            if self._view.worklist.is_done(pass_):
                break
            if self._sweep(pass_, record) == 0 or self.report.stopped:
                break
        else:
            raise PassError(f"{pass_.name} found no fixpoint in {MAX_SWEEPS} sweeps")
        record.misses = self._missed(pass_)
        record.nodes_after = len(self.graph.nodes)
        record.seconds = time.perf_counter() - start
        self.report.records.append(record)
        if record.hits and env_vars.VERIFY.get():
            self._verify(pass_.name)
        if env_vars.EXPLAIN_PASSES.get():
            record.explain()
        return record

    def infer_types(self) -> None:
        """Infers types again; see `GraphView.infer_types`."""
        self._view.infer_types()

    def _sweep(self, pass_: Pass, record: PassRecord) -> int:
        limit, view = env_vars.MAX_PATCHES.get(), self._view
        alive = view.worklist.places
        before = len(record.hits)
        nodes = self._nodes(pass_)
        misses = self._misses[pass_]
        for node in nodes:
            if 0 <= limit <= self.report.patches:
                self.report.stopped = True
                break
            if node not in alive:
                continue
            found = pass_.match(view, node)
            if isinstance(found, Match):
                patch = pass_.rewrite(found)
                dead = view.dead_after(found, patch)
                if not isinstance(dead, str):
                    record.hits.append(str(node))
                    view.apply(patch, found, dead, pass_.name)
                    self.report.patches += 1
                    continue
                found = Miss(dead, found.root)
            if found is not None:
                misses[node] = str(found.node), found.reason
            elif misses:
                misses.pop(node, None)
        view.flush_changes()
        return len(record.hits) - before

    def _nodes(self, pass_: Pass) -> Iterable[Node]:
        """The nodes that a pass has to look at, in order."""
        view, worklist = self._view, self._view.worklist
        kinds = {kind for kind, count in view.counts.items() if count and pass_.may_match(kind)}
        if pass_.is_local and worklist.has_begun(pass_):
            return (
                n for n in worklist.due(pass_, pass_.visits_outputs_first) if type(n.op) in kinds
            )
        worklist.begin(pass_)
        self._misses[pass_] = {}
        if not kinds or any(not view.counts[kind] for kind in pass_.required_op_classes):
            return ()
        nodes = [n for n in self.graph.nodes if type(n.op) in kinds]
        return reversed(nodes) if pass_.visits_outputs_first else nodes

    def _missed(self, pass_: Pass) -> list[tuple[str, str]]:
        """The near misses that remain."""
        found = self._misses.get(pass_, {})
        alive = [n for n in found if self._view.is_alive(n)]
        alive.sort(key=self._view.worklist.places.__getitem__, reverse=pass_.visits_outputs_first)
        return [found[n] for n in alive]

    def _verify(self, name: str) -> None:
        try:
            verify(self.graph)
        except ClrtError as error:
            raise PassError(f"after {name}: {error}") from error


def run_pass(graph: Graph, pass_: Pass) -> PassRecord:
    """Applies one pass to a graph until it matches nowhere.

    Raises:
        PassError: A patch breaks a rule, or no fixpoint comes.
    """
    return PassRunner(graph).run(pass_)


def infer_types(graph: Graph) -> None:
    """Infers output types again, in order: inputs may tell more than was known at first."""
    PassRunner(graph).infer_types()


__all__ = [
    "GraphView",
    "Match",
    "Miss",
    "Pass",
    "PassRecord",
    "PassReport",
    "PassRunner",
    "infer_types",
    "run_pass",
]

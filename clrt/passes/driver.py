"""Pass driver: runs passes over a graph. Nothing else changes a graph after import.

A pass matches nodes and returns patches. The driver checks and applies each patch at once, updates
the users of values, removes dead nodes, and repeats until nothing matches. A pass is not run again
on a graph that has not changed since its last run.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Set
from dataclasses import field
from typing import Any, ClassVar

from clrt.device.caps import DeviceCaps
from clrt.errors import ClrtError, PassError
from clrt.ir.dims import Dim, infer_symbols
from clrt.ir.graph import Graph, Names, Node, Patch, Value, all_graphs
from clrt.ir.op import IrOp, TensorType
from clrt.ir.verify import verify, verify_types
from clrt.ops.base import Op
from clrt.ops.op_builder import OpBuilder
from clrt.passes.report import PassOutcome, PassReport
from clrt.passes.worklist import Worklist
from clrt.util import env_vars
from clrt.util.fast_dataclass import dataclass
from clrt.util.host_limits import FoldBudget

# Maximum number of sweeps of one pass over a graph; more mean that rewrites undo each other.
MAX_SWEEPS = 64
# Key of type inference in the worklist, whose other readers are passes.
_INFERENCE = "infer_types"


@dataclass(frozen=True, eq=False)
class Miss:
    """Near miss of a pass: a node that resembles the pass's pattern, and why it does not match."""

    reason: str
    node: Node


@dataclass(eq=False)
class Match:
    """Match of a pass at a node.

    Attributes:
        view: The graph that the node is in.
        root: The matched node.
        replaced_nodes: Nodes that the rewrite makes dead, including the root; by default, the root
            alone. If one of these nodes would still be needed, the driver discards the match and
            records a near miss.
        traversed_nodes: Nodes of the pattern that may stay alive after the rewrite.
        payload: Data that `match` passes to `rewrite`.
    """

    view: GraphView
    root: Node
    replaced_nodes: list[Node] = field(default_factory=list)
    traversed_nodes: list[Node] = field(default_factory=list)
    payload: Any = None

    def __post_init__(self) -> None:
        self.replaced_nodes = self.replaced_nodes or [self.root]

    def builder(self, pass_name: str) -> OpBuilder:
        """Returns a builder for replacement nodes, which are named after the root and the pass."""
        return OpBuilder(self.view.names, self.root.name, pass_name)


class Pass(ABC):
    """A rewrite of a graph: `match` finds a pattern, `rewrite` builds its replacement. Stateless.

    Passes of one class with equal settings are equal. The driver skips a pass if no node has
    changed since an equal pass ran; if the pass is local, it also skips each unchanged node.

    Class attributes:
        name: Name in reports, and `made_by` of the nodes that the pass creates.
        visits_outputs_first: Whether sweeps go from outputs to inputs.
        is_local: Whether a match depends only on a node's op, inputs, types and users. If so, a
            node is matched again only if its op, inputs, types or users have changed.
        required_op_classes: Op classes that must all occur in the graph, else the pass is skipped.
        follow_ups: Passes that finish or clean up the rewrites of this pass. In a pipeline for a
            device, they run after this pass if it changed anything, until nothing changes.
    """

    name: ClassVar[str]
    visits_outputs_first: ClassVar[bool] = False
    is_local: ClassVar[bool] = False
    required_op_classes: ClassVar[tuple[type[IrOp], ...]] = ()
    follow_ups: ClassVar[tuple[Pass, ...]] = ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def is_for(self, caps: DeviceCaps) -> bool:
        """Whether a pipeline for a device runs the pass; true for all devices by default."""
        return True

    def tuned(self, caps: DeviceCaps) -> Pass:
        """Returns the pass with the thresholds of a device; itself if it has none."""
        return self

    def may_match(self, op: type[IrOp]) -> bool:
        """Whether nodes of an op class may match the pass; called once per class and sweep."""
        return True

    @abstractmethod
    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        """Matches the pattern at `node`; returns a match, a near miss, or None for other nodes."""

    @abstractmethod
    def rewrite(self, match: Match) -> Patch:
        """Returns the patch that replaces a match."""


class GraphView:
    """A graph with use-def edges, updated as patches are applied.

    Attributes:
        graph: The graph.
        budget: Remaining bytes and operations for constant folding, shared by all passes.
        memo: Cache of the running pass for this graph, kept from one run of the pass to the next.
        worklist: Nodes of the graph in visiting order, and a log of changed nodes.
        counts: Number of nodes per op class.
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
        self._resolved: dict[str, Dim] = {}
        self._names: Names | None = None
        for node in graph.nodes:
            self._read(node)
        for value in graph.outputs:
            self._outputs[value] = self._outputs.get(value, 0) + 1

    @property
    def names(self) -> Names:
        """Generator of unused names for values and nodes of the graph."""
        if self._names is None:
            value_names = {v.name for v in self.graph.values()}
            self._names = Names(value_names | {n.name for n in self.graph.nodes})
        return self._names

    def producer(self, value: Value) -> Node | None:
        """Returns the node that computes a value; None for inputs and constants."""
        return value.producer

    def users(self, value: Value) -> list[Node]:
        """Returns the nodes that read a value, each once."""
        return list(self._users.get(value, ()))

    def user_count(self, value: Value) -> int:
        """Returns the number of nodes that read a value."""
        return len(self._users.get(value, ()))

    def is_output(self, value: Value) -> bool:
        """Whether a value is an output of the graph."""
        return value in self._outputs

    def is_used(self, value: Value) -> bool:
        """Whether a node reads a value, or it is an output of the graph."""
        return bool(self._users.get(value)) or value in self._outputs

    def only_user(self, value: Value) -> Node | None:
        """Returns the only user of a value; None if it has another use or is a graph output."""
        users = self._users.get(value, {})
        return next(iter(users)) if len(users) == 1 and value not in self._outputs else None

    def stays_inside(self, value: Value, nodes: Set[Node]) -> bool:
        """Whether a value is not a graph output and all its users are in `nodes`."""
        users = self._users.get(value)
        return value not in self._outputs and (users is None or users.keys() <= nodes)

    def dead_after(self, match: Match, patch: Patch) -> set[Node] | str:
        """Computes which nodes a patch makes dead; changes nothing.

        Returns:
            The dead nodes; a reject reason if one of `match.replaced_nodes` would stay alive.
        """
        read = {v for n in patch.nodes for v in n.inputs} | set(patch.replace.values())
        dead: set[Node] = set()
        pending = list(match.replaced_nodes)  # the last one first: users before producers
        while pending:
            node = pending.pop()
            if node not in dead and not self._keeps(node, read, patch, dead):
                dead.add(node)
                producers = (v.producer for v in node.inputs if v is not None)
                pending += [n for n in producers if n is not None]
        for value in (v for n in match.replaced_nodes if n not in dead for v in n.outputs):
            if value not in patch.replace:
                use = "one of its operands" if value in read else "used elsewhere"
                return f"'{value.name}' is {use}, too"
        return dead

    def _keeps(self, node: Node, read: Set[Value | None], patch: Patch, dead: Set[Node]) -> bool:
        """Whether an output of a node is still needed after a patch.

        Args:
            node: The node.
            read: Values that new nodes of the patch read, or that replace other values.
            patch: The patch; outputs that it replaces are not needed.
            dead: Nodes known to be dead after the patch.
        """
        for value in node.outputs:
            if value in patch.replace:
                continue
            if value in read or value in self._outputs:
                return True
            if (users := self._users.get(value)) and not users.keys() <= dead:
                return True
        return False

    def is_alive(self, node: Node) -> bool:
        """Whether a node is in the graph, not removed by a patch."""
        return node in self.worklist.places

    def apply(self, patch: Patch, match: Match, dead: Set[Node], pass_name: str) -> None:
        """Checks a patch and applies it to the graph.

        Args:
            patch: Nodes to add and values to replace.
            match: Match that the patch was built for.
            dead: Nodes to remove, as `dead_after` returns them.
            pass_name: Recorded as `made_by` of the new nodes.

        Raises:
            PassError: The patch changes a type, or reads a replaced or removed value.
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
            node.inputs = []  # references to the node must not keep its inputs alive

    def _replace(self, old: Value, new: Value) -> None:
        """Makes all users of `old` read `new`, and touches the nodes that may match now."""
        new.aliases += (old.name, *old.aliases)
        for user in self._users.pop(old, {}):
            user.inputs = [new if v is old else v for v in user.inputs]
            self._users.setdefault(new, {})[user] = None
            self.worklist.touch(user)
        if old in self._outputs:
            self._outputs[new] = self._outputs.get(new, 0) + self._outputs.pop(old)
            self.graph.outputs = [new if v is old else v for v in self.graph.outputs]
        self.worklist.touch(new.producer)
        self._resolved |= _resolved_dims(old.type, new.type)

    def flush_changes(self) -> None:
        """Applies pending changes to the graph's node list and types.

        Removes dead nodes, sorts the nodes topologically, and binds symbols of resolved dims.
        """
        if self._added or self._dead:
            nodes = [*self.graph.nodes, *self._added]
            self.graph.nodes = [n for n in nodes if n in self.worklist.places]
        # Sort again: a new node has the position of the match root that it replaces, and the
        # replacement of a value may be computed after the value's users.
        if self._added or self._replaced:
            self.graph.sort()
        self._added, self._dead, self._replaced = [], 0, False
        self._bind(self._resolved)
        self._resolved = {}

    def _bind(self, resolved: dict[str, Dim]) -> None:
        """Replaces resolved symbols by dims in the graph; if there are any, touches all nodes."""
        self.graph.bind(resolved)
        for node in self.graph.nodes if resolved else ():
            self.worklist.touch(node)

    def infer_types(self) -> None:
        """Infers the output types of nodes again, since folded inputs may refine them.

        Nodes are visited in topological order: all nodes in the first call, nodes touched since the
        last call in later calls.
        """
        resolved: dict[str, Dim] = {}
        again = self.worklist.has_begun(_INFERENCE)
        if not again:
            self.worklist.begin(_INFERENCE)
        for node in self.worklist.due(_INFERENCE) if again else self.graph.nodes:
            types = node.op_as(Op).infer_with_data(node.input_types)
            for value, type_ in zip(node.outputs, types, strict=False):
                merged = value.type.intersect(type_)
                resolved |= (dims := _resolved_dims(value.type, type_))
                if merged is not value.type or dims:
                    value.type = merged
                    self.worklist.touch(node)
                    for user in self._users.get(value, ()):
                        self.worklist.touch(user)
        self._bind(resolved)

    def _read(self, node: Node) -> None:
        """Registers a node as a user of its inputs."""
        for value in node.inputs:
            if value is not None:
                users = self._users.get(value)
                if users is None:
                    self._users[value] = {node: None}
                else:
                    users[node] = None


def fold_budget(graph: Graph) -> FoldBudget:
    """Returns a budget for constant folding, sized by the constants of a graph and inner graphs."""
    constants = {v for g in all_graphs(graph) for v in g.constants()}
    return FoldBudget.of(sum(v.nbytes for v in constants))


def _resolved_dims(old: TensorType, new: TensorType) -> dict[str, Dim]:
    """Returns the unknown dims of type `old` that type `new` resolves, by symbol.

    The driver binds these symbols throughout the graph, as the node that resolves a dim may be
    removed later. Symbols that the model file declares are left out, as they may be wrong.
    """
    return infer_symbols(old.shape or (), new.shape or ())


def _check(patch: Patch, match: Match, view: GraphView) -> None:
    """Raises PassError if a patch changes a type or reads a value that is replaced or removed."""
    produced = {v for n in match.replaced_nodes for v in n.outputs}
    new_values = {v for n in patch.nodes for v in n.outputs}
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
            alive = value.producer is None or view.is_alive(value.producer) or value in new_values
            if not alive:
                raise PassError(f"{node}, new, reads {value!r}, which is no longer computed")
        if node not in patch.typed:
            verify_types(node)


class PassRunner:
    """Runs passes on one graph and collects their report.

    Attributes:
        graph: The graph, changed in place.
        instead: Passes by name; each runs in place of the requested pass of the same name.
        report: Records of all runs so far.

    Args:
        graph: Graph to run passes on.
        instead: Passes that replace requested passes of the same name.
        budget: Budget for constant folding, shared with inner graphs; None for a new one.
    """

    def __init__(self, graph: Graph, *instead: Pass, budget: FoldBudget | None = None) -> None:
        self.graph = graph
        self.instead = {p.name: p for p in instead}
        self.report = PassReport()
        self._view = GraphView(graph, budget)
        self._memos: dict[Pass, dict[Hashable, Any]] = {}
        # (node, reason) of near misses by pass and node; kept for nodes that are not matched again.
        self._misses: dict[Pass, dict[Node, tuple[str, str]]] = {}

    def run(self, pass_: Pass) -> PassOutcome:
        """Applies a pass to the graph until no node matches.

        Returns:
            The record of this run, also appended to the report.

        Raises:
            PassError: A patch is invalid, or there is no fixpoint within `MAX_SWEEPS`.
        """
        start = time.perf_counter()
        pass_ = self.instead.get(pass_.name, pass_)
        record = PassOutcome(pass_.name)
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
        """Infers output types of nodes touched since the last call; the first call visits all."""
        self._view.infer_types()

    def _sweep(self, pass_: Pass, record: PassOutcome) -> int:
        """Matches a pass once at each node it has to visit, and applies the patches.

        Args:
            pass_: The pass.
            record: Record of the run; hits are appended.

        Returns:
            The number of patches applied.
        """
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
            match = pass_.match(view, node)
            if isinstance(match, Match):
                patch = pass_.rewrite(match)
                dead = view.dead_after(match, patch)
                if not isinstance(dead, str):
                    record.hits.append(str(node))
                    view.apply(patch, match, dead, pass_.name)
                    self.report.patches += 1
                    continue
                match = Miss(dead, match.root)
            if match is not None:
                misses[node] = str(match.node), match.reason
            elif misses:
                misses.pop(node, None)
        view.flush_changes()
        return len(record.hits) - before

    def _nodes(self, pass_: Pass) -> Iterable[Node]:
        """Returns the nodes that a pass has to visit in a sweep, in the pass's visiting order."""
        view, worklist = self._view, self._view.worklist
        classes = {cls for cls, count in view.counts.items() if count and pass_.may_match(cls)}
        if pass_.is_local and worklist.has_begun(pass_):
            return (
                n for n in worklist.due(pass_, pass_.visits_outputs_first) if type(n.op) in classes
            )
        worklist.begin(pass_)
        self._misses[pass_] = {}
        if not classes or any(not view.counts[cls] for cls in pass_.required_op_classes):
            return ()
        nodes = [n for n in self.graph.nodes if type(n.op) in classes]
        return reversed(nodes) if pass_.visits_outputs_first else nodes

    def _missed(self, pass_: Pass) -> list[tuple[str, str]]:
        """Returns a pass's near misses at nodes still in the graph, as (printed node, reason)."""
        misses = self._misses.get(pass_, {})
        alive = [n for n in misses if self._view.is_alive(n)]
        alive.sort(key=self._view.worklist.places.__getitem__, reverse=pass_.visits_outputs_first)
        return [misses[n] for n in alive]

    def _verify(self, name: str) -> None:
        """Verifies the graph after the pass `name`; raises PassError if it is inconsistent."""
        try:
            verify(self.graph)
        except ClrtError as error:
            raise PassError(f"after {name}: {error}") from error


def run_pass(graph: Graph, pass_: Pass) -> PassOutcome:
    """Applies one pass to a graph, in place, until nothing matches; returns the record of the run.

    Raises:
        PassError: A patch is invalid, or there is no fixpoint within `MAX_SWEEPS`.
    """
    return PassRunner(graph).run(pass_)


def infer_types(graph: Graph) -> None:
    """Infers the output types of all nodes of a graph again, in topological order, in place."""
    PassRunner(graph).infer_types()


__all__ = [
    "GraphView",
    "Match",
    "Miss",
    "Pass",
    "PassOutcome",
    "PassReport",
    "PassRunner",
    "infer_types",
    "run_pass",
]

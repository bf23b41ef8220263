"""Adds the nodes that compute gradients to a graph: reverse-mode differentiation.

The walk goes from the differentiated value back through the nodes. Each op turns the cotangents of
its outputs, the derivatives of that value with respect to them, into cotangents of its inputs
(`Op.vjp`). An op without a rule is differentiated through its decomposition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from clrt.errors import UnsupportedError
from clrt.ir.graph import Graph, Names, Node, Value, all_graphs
from clrt.ir.node_errors import NodeErrorContext
from clrt.ops.base import Op
from clrt.ops.decompositions.registry import DecompositionStage, decompose
from clrt.ops.gradients.shapes import filled_like
from clrt.ops.op_builder import OpBuilder

# Maximum number of nodes that an error lists between the differentiated value and a node.
_MAX_PATH_NODES = 8
# Domain of ops that only passes and decompositions make; they may inherit rules that do not fit.
_OWN_DOMAIN = "clrt"


class _NoGradient(UnsupportedError):
    """An op has no gradient; the message says which node, and why.

    Attributes:
        path: Nodes from the differentiated value to it; the last ones may be of a subgraph.
    """

    path: list[Node]


def add_gradients(
    nodes: Sequence[Node], y: Value, xs: Sequence[Value], names: Names
) -> tuple[list[Node], list[Value]]:
    """Returns the derivatives of the sum of a value's elements with respect to other values.

    Args:
        nodes: Nodes of the graph in topological order, which are not changed.
        y: Value to differentiate, of a floating-point dtype.
        xs: Values to differentiate by, of floating-point dtypes.
        names: Names in use in the graph.

    Returns:
        The new nodes in topological order, and per value of `xs` a value of its type. It is zero if
        `y` does not depend on the value, or only through functions that are constant almost
        everywhere, such as Floor.

    Raises:
        UnsupportedError: An op between `xs` and `y` has no gradient, or a subgraph reads one of
            the constants `xs`.
    """
    check_captures(nodes, xs)
    build = OpBuilder(names, suffix="gradient")
    seed = filled_like(build.under(y.name), 1, y)
    try:
        cotangents = _ReverseWalk(build).run(nodes, {y: seed}, xs)
    except _NoGradient as error:
        titles = list(map(str, error.path))
        if len(titles) > _MAX_PATH_NODES:
            titles[_MAX_PATH_NODES // 2 : -_MAX_PATH_NODES // 2] = ["…"]
        path = " ← ".join([f"'{y.name}'", *titles])
        raise UnsupportedError(
            f"{str(error).rstrip('.')} (path: {path}); leave what comes before it out of the "
            "differentiated values, or export the model without the op."
        ) from error
    gradients = []
    for x in xs:
        gradient = cotangents.get(x)
        if gradient is None:
            gradient = filled_like(build.under(x.name), 0, x)
        gradients.append(gradient)
    return _needed(build.nodes, gradients), gradients


def pull_back_graph(
    graph: Graph, given: Sequence[bool], wanted: Sequence[bool], names: Names
) -> Graph:
    """Returns the graph that computes cotangents of a graph's inputs from those of its outputs.

    Args:
        graph: A subgraph, as of If.
        given: Per output, whether it has a cotangent.
        wanted: Per input, whether to compute its cotangent.
        names: Names in use in the main graph.

    Returns:
        A graph with the inputs of `graph`, then the given cotangents; and an output per wanted
        input, of its shape.

    Raises:
        UnsupportedError: An op has no gradient.
    """
    body = graph.copy()
    _rename(body.nodes, names)
    build = OpBuilder(names, "gradient")
    seeds: dict[Value, Value] = {}
    feeds = []
    for output, present in zip(body.outputs, given, strict=True):
        if present:
            feeds.append(Value(names.fresh("gradient", "cotangent"), output.type))
            _accumulate(build, seeds, output, feeds[-1])
    xs = [v for v, is_wanted in zip(body.inputs, wanted, strict=True) if is_wanted]
    found = _ReverseWalk(build).run(body.nodes, seeds, xs)
    outputs = [found[x] if x in found else filled_like(build, 0, x) for x in xs]
    result = build.graph("gradient", [*body.inputs, *feeds], outputs)
    result.nodes = [*body.nodes, *build.nodes]
    result.remove_dead()
    return result


def _rename(nodes: Iterable[Node], names: Names) -> None:
    """Gives copies of nodes, and their outputs, names that nothing else in the graph has."""
    for node in nodes:
        node.name = names.fresh(node.name, "gradient")
        for value in node.outputs:
            value.name = names.fresh(value.name, "gradient")


def _accumulate(
    build: OpBuilder, cotangents: dict[Value, Value], value: Value, cotangent: Value
) -> None:
    """Adds a cotangent of a value to those that are known."""
    known = cotangents.get(value)
    if known is not None:
        cotangent = build.under(value.name)("Add", known, cotangent)
    cotangents[value] = cotangent


def check_captures(nodes: Iterable[Node], xs: Iterable[Value]) -> None:
    """Checks that no subgraph (of If, Loop or Scan) reads one of the constants among `xs`.

    Raises:
        UnsupportedError: A subgraph does.
    """
    constants = {x for x in xs if x.is_constant}
    for node in nodes:
        for inner in (g for body in node.op.graphs for g in all_graphs(body)):
            for value in constants.intersection(inner.constants()):
                raise UnsupportedError(
                    f"'{value.name}' is read inside a subgraph of {node}, through which clrt does "
                    "not differentiate; leave it out of the values to differentiate by."
                )


def influences(nodes: Sequence[Node], y: Value) -> set[Value]:
    """Returns the values that `y` depends on through floating-point values, `y` included.

    Args:
        nodes: Nodes in topological order.
        y: A value.
    """
    found = {y}
    for node in reversed(nodes):
        if any(v in found for v in node.outputs):
            found.update(v for v in node.inputs if v is not None and v.dtype.is_float)
    return found


def _needed(nodes: Sequence[Node], outputs: Iterable[Value]) -> list[Node]:
    """Returns the nodes that `outputs` depend on, in the same order."""
    live = set(outputs)
    kept = []
    for node in reversed(nodes):
        if any(v in live for v in node.outputs):
            live.update(v for v in node.inputs if v is not None)
            kept.append(node)
    return kept[::-1]


def _dependents(nodes: Iterable[Node], xs: Iterable[Value]) -> set[Value]:
    """Returns the values that depend on `xs` through floating-point values, `xs` included."""
    found = set(xs)
    for node in nodes:
        if any(v in found for v in node.inputs):
            found.update(v for v in node.outputs if v.dtype.is_float)
    return found


class _ReverseWalk:
    """Computes cotangents from one value back through nodes.

    Args:
        build: Builder of the new nodes.
    """

    def __init__(self, build: OpBuilder) -> None:
        self._build = build
        # The node that gave a value its first cotangent, for the path in errors.
        self._readers: dict[Value, Node] = {}

    def run(
        self, nodes: Sequence[Node], seeds: Mapping[Value, Value], xs: Iterable[Value]
    ) -> dict[Value, Value]:
        """Returns the cotangents of the values on the way from `xs`; values without one have zeros.

        Args:
            nodes: Nodes in topological order.
            seeds: Cotangents of results of the nodes.
            xs: Values to differentiate by.
        """
        active = _dependents(nodes, xs)
        cotangents = {v: c for v, c in seeds.items() if v in active}
        for node in reversed(nodes):
            given = [cotangents.get(v) for v in node.outputs]
            if all(c is None for c in given) or not any(v in active for v in node.inputs):
                continue
            found = self._pull_back(node, given, active)
            for value, cotangent in zip(node.inputs, found, strict=False):
                if value is not None and cotangent is not None and value in active:
                    self._readers.setdefault(value, node)
                    _accumulate(self._build, cotangents, value, cotangent)
        return cotangents

    def _pull_back(
        self, node: Node, given: Sequence[Value | None], active: Collection[Value]
    ) -> Sequence[Value | None]:
        """Returns a cotangent per input of a node; None for zeros.

        Args:
            node: The node.
            given: A cotangent per output; None for zeros.
            active: Values whose cotangents are needed.
        """
        op = node.op_as(Op)
        try:
            if op.domain == _OWN_DOMAIN:
                raise UnsupportedError(f"{node} has no gradient")
            if op.has_gradient():
                with NodeErrorContext(node):
                    return op.vjp(self._build.under(node.name), node, given)
            stages = DecompositionStage.GRADIENT, DecompositionStage.PLANNING
            replaced = decompose(node, self._build.names, *stages)
            if replaced is None:
                raise UnsupportedError(f"{node} has no gradient")
        except UnsupportedError as error:
            failed = _NoGradient(str(error))
            failed.path = self._path_to(node) + (
                error.path if isinstance(error, _NoGradient) else []
            )
            raise failed from error
        nodes, results = replaced
        _rename(nodes, self._build.names)
        self._build.nodes += nodes
        for value, output in zip(results, node.outputs, strict=False):
            if output in self._readers:
                self._readers.setdefault(value, self._readers[output])
        seeds: dict[Value, Value] = {}
        for result, cotangent in zip(results, given, strict=False):  # may be one value twice
            if cotangent is not None:
                _accumulate(self._build, seeds, result, cotangent)
        inner = self.run(nodes, seeds, [v for v in node.inputs if v is not None and v in active])
        # A value that is several inputs has one cotangent, which counts once.
        return [None if v is None else inner.pop(v, None) for v in node.inputs]

    def _path_to(self, node: Node) -> list[Node]:
        """Returns the nodes from the differentiated value to a node, both ends included."""
        path = [node]
        while reader := next(
            (self._readers[v] for v in path[-1].outputs if v in self._readers), None
        ):
            path.append(reader)
        return path[::-1]

"""Moves transposes behind views, where they meet other transposes and vanish."""

from __future__ import annotations

from dataclasses import dataclass

from clrt.ir.dims import Shape, TooComplex, product, provably_equal
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import Reshape
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import has_known_shape, produced_by


class SinkTranspose(Pass):
    """Reshape(Transpose(x)) -> Transpose(Reshape(x)), where the view keeps moved axes together.

    Between convolutions and products, exporters make tokens of maps, and maps of tokens:
    [N,C,H,W] -> [N,C,H*W] -> [N,H*W,C]. Where channels lie last already, no element moves.
    """

    name = "sink_transpose"
    required_op_classes = (Transpose, Reshape)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Reshape)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        turn = produced_by(node.arg(0), "Transpose")
        if turn is None or not has_known_shape(node.output):
            return None
        try:
            found = _moved(turn, node.output)
        except TooComplex:
            return Miss("its dims are too long", node)
        if isinstance(found, str):
            return Miss(found, node)
        if view.only_user(turn.output) is None:
            return Miss("others read what is transposed", node)
        return Match(view, node, traversed_nodes=[turn], payload=found)

    def rewrite(self, match: Match) -> Patch:
        build, (turn,), found = match.builder(self.name), match.traversed_nodes, match.payload
        value = build.add(Reshape(allowzero=1), turn.arg(0), build.dims(found.shape))
        return build.patch({match.root.output: build.add(Transpose(found.perm), value)})


@dataclass(frozen=True)
class _Moved:
    """The shape to view what is transposed in, and how it is transposed then."""

    shape: Shape
    perm: tuple[int, ...]


def _moved(turn: Node, y: Value) -> _Moved | str:
    before, after = turn.output.shape, y.shape
    assert isinstance(turn.op, Transpose)
    if before is None or after is None:
        return "a rank is unknown"
    order = turn.op.order(len(before))
    groups = _groups(before, after)
    if groups is None:
        return "the view merges and splits axes at once"
    for axes, _ in groups:
        if any(order[a + 1] != order[a] + 1 for a in axes[:-1]):
            return "the view merges axes that did not lie beside each other"
    groups.sort(key=lambda g: order[g[0][0]])
    source = [a for _, parts in groups for a in parts]
    perm = tuple(source.index(a) for a in range(len(after)))
    return _Moved(tuple(after[a] for a in source), perm)


def _groups(before: Shape, after: Shape) -> list[tuple[range, range]] | None:
    """The shortest runs of axes that hold as many elements in both shapes; None if there are none.

    Each has an axis at least on both sides; ones that are left over go with the last.
    """
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        ends = sorted(
            ((m, n) for m in range(i, len(before)) for n in range(j, len(after))), key=sum
        )
        found = next(
            (
                e
                for e in ends
                if provably_equal(product(before[i : e[0] + 1]), product(after[j : e[1] + 1]))
            ),
            None,
        )
        if found is None:
            return None
        groups.append((range(i, found[0] + 1), range(j, found[1] + 1)))
        i, j = found[0] + 1, found[1] + 1
    rest = (*before[i:], *after[j:])
    if not groups or not all(provably_equal(d, 1) for d in rest):
        return None
    first, last = groups.pop()
    return [*groups, (range(first.start, len(before)), range(last.start, len(after)))]

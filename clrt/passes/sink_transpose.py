"""Sinks Transpose below Reshape, until it cancels with other transposes."""

from __future__ import annotations

from clrt.ir.dims import Shape, TooComplex, product, provably_equal
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import Reshape
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import has_known_shape, produced_by
from clrt.util.fast_dataclass import dataclass


class SinkTranspose(Pass):
    """Reshape(Transpose(x)) -> Transpose(Reshape(x)), if merged axes are adjacent in x.

    Merged axes are axes that the Reshape combines into one. Between convolutions and matrix
    products, models convert feature maps to tokens and back: [batch, channels, height, width] ->
    [batch, channels, tokens] -> [batch, tokens, channels]. With channels-last feature maps, the
    Transposes cancel and no element moves.
    """

    name = "sink_transpose"
    required_op_classes = (Transpose, Reshape)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Reshape)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        transpose = produced_by(node.arg(0), "Transpose")
        if transpose is None or not has_known_shape(node.output):
            return None
        try:
            moved = _moved(transpose, node.output)
        except TooComplex:
            return Miss("its symbolic dims are too complex", node)
        if isinstance(moved, str):
            return Miss(moved, node)
        if view.only_user(transpose.output) is None:
            return Miss("the Transpose has other users", node)
        return Match(view, node, traversed_nodes=[transpose], payload=moved)

    def rewrite(self, match: Match) -> Patch:
        build, (transpose,), moved = match.builder(self.name), match.traversed_nodes, match.payload
        value = build.reshaped(transpose.arg(0), *moved.shape)
        return build.patch({match.root.output: build.add(Transpose(moved.perm), value)})


@dataclass(frozen=True)
class _Moved:
    """Reshape and Transpose in swapped order: target `shape`, then permutation `perm`."""

    shape: Shape
    perm: tuple[int, ...]


def _moved(transpose: Node, y: Value) -> _Moved | str:
    """Returns how to compute y by a Reshape first, then a Transpose.

    Args:
        transpose: The Transpose, which now comes first.
        y: Output of the Reshape of the Transpose's output.

    Returns:
        Target shape of the new Reshape and permutation of the new Transpose; a reject reason if
        there are none.
    """
    before, after = transpose.output.shape, y.shape
    if before is None or after is None:
        return "a rank is unknown"
    order = transpose.op_as(Transpose).order(len(before))
    groups = _groups(before, after)
    if groups is None:
        return "the view merges and splits axes at once"
    for axes, _ in groups:
        if any(order[a + 1] != order[a] + 1 for a in axes[:-1]):
            return "the view merges axes that are not adjacent before the Transpose"
    groups.sort(key=lambda g: order[g[0][0]])
    source = [a for _, parts in groups for a in parts]
    perm = tuple(source.index(a) for a in range(len(after)))
    return _Moved(tuple(after[a] for a in source), perm)


def _groups(before: Shape, after: Shape) -> list[tuple[range, range]] | None:
    """Splits the axes before and after a Reshape into pairs of runs with equal element counts.

    The runs are as short as possible, but have at least one axis each. Trailing axes of size 1 are
    in the last run.

    Returns:
        Ranges (axes of `before`, axes of `after`) per run; None if the shapes cannot be split.
    """
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        ends = sorted(
            ((m, n) for m in range(i, len(before)) for n in range(j, len(after))), key=sum
        )
        end = next(
            (
                e
                for e in ends
                if provably_equal(product(before[i : e[0] + 1]), product(after[j : e[1] + 1]))
            ),
            None,
        )
        if end is None:
            return None
        groups.append((range(i, end[0] + 1), range(j, end[1] + 1)))
        i, j = end[0] + 1, end[1] + 1
    rest = (*before[i:], *after[j:])
    if not groups or not all(provably_equal(d, 1) for d in rest):
        return None
    first, last = groups.pop()
    return [*groups, (range(first.start, len(before)), range(last.start, len(after)))]

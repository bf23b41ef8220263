"""Einsum -> transpositions, sums, and a matrix product or Mul for each further operand."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from clrt.ir.dims import Dim, same
from clrt.ir.graph import Node, Patch, Value
from clrt.ops.einsum import Einsum, Labels, Subscripts
from clrt.ops.matmul import MatMul
from clrt.ops.pointwise import Mul
from clrt.ops.reduce import ReduceSum
from clrt.ops.transpose import Transpose
from clrt.ops.views import Reshape
from clrt.passes.driver import GraphView, Match, Miss, Pass, Rewriter


@dataclass(frozen=True)
class _Term:
    """An operand with a label of its own on each axis."""

    value: Value
    labels: Labels


class LowerEinsum(Pass):
    """Operands are multiplied from left to right, each sum as early as it can be taken.

    Labels of a pair: in both operands and needed later (batch), in one (rows, columns), summed up.
    """

    name = "lower_einsum"

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        op = node.op
        if not isinstance(op, Einsum):
            return None
        operands = [v for v in node.inputs if v is not None]
        shapes = [v.shape for v in operands if v.shape is not None]
        if len(shapes) < len(operands):
            return Miss("an operand has no known rank", node)
        if any("unknown_" in str(d) for shape in shapes for d in shape):
            return Miss("a dim is only known when the model runs", node)
        subscripts = op.subscripts([len(s) for s in shapes])
        (first, *others) = subscripts.terms
        if not others and len(set(first)) < len(first) and set(first) == set(subscripts.output):
            return None  # a diagonal, which has a kernel
        sizes = op.sizes(subscripts, shapes)
        return Match(view, node, facts=(subscripts, sizes))

    def rewrite(self, match: Match) -> Patch:
        subscripts, sizes = match.facts
        return _Lowering(Rewriter(match, self.name), sizes, subscripts.output).run(
            match.root, subscripts.terms
        )


class _Lowering:
    def __init__(self, rewriter: Rewriter, sizes: dict[str, Dim], output: Labels) -> None:
        self._rewriter = rewriter
        self._sizes = sizes
        self._output = output

    def run(self, node: Node, labels_of: tuple[Labels, ...]) -> Patch:
        operands = zip(node.inputs, labels_of, strict=True)
        terms = [self._distinct(v, labels) for v, labels in operands if v is not None]
        terms = [self._without_ones(t) for t in terms]
        left, *others = [self._without_ones(t) for t in terms]
        while others:
            right = others.pop(0)
            later = set(self._output).union(*(t.labels for t in others))
            left = self._sum(left, later | set(right.labels))
            right = self._sum(right, later | set(left.labels))
            left = self._sum(self._multiply(left, right, later), later)
        final = self._arrange(self._sum(left, set(self._output)), self._output)
        return self._rewriter.patch({node.output: final.value})

    def _multiply(self, left: _Term, right: _Term, later: Collection[str]) -> _Term:
        """The product; labels that both have and nothing needs later may be left to sum up."""
        rows, columns = (
            self._ordered(set(a.labels) - set(b.labels)) for a, b in ((left, right), (right, left))
        )
        shared = set(left.labels) & set(right.labels)
        summed = tuple(x for x in left.labels if x in shared and x not in later)
        batch = self._ordered(shared - set(summed))
        if not summed or not (rows or columns):
            order = self._ordered(set(left.labels) | set(right.labels))
            spread = (
                self._grouped(t, *((x,) if x in t.labels else () for x in order))
                for t in (left, right)
            )
            return _Term(self._rewriter.add(Mul(), *spread), order)
        if rows and columns and self._ordered((rows[0], columns[0]))[0] == columns[0]:
            left, right, rows, columns = right, left, columns, rows
        lead = [(x,) for x in batch]
        a = self._grouped(left, *lead, rows, summed)
        b = self._grouped(right, *lead, summed, columns)
        product = self._rewriter.add(MatMul(), a, b)
        order = (*batch, *rows, *columns)
        if (len(rows), len(columns)) != (1, 1):
            product = self._view(product, *((x,) for x in order))
        return _Term(product, order)

    def _ordered(self, labels: Collection[str]) -> Labels:
        """Labels by their place in the output; those that are not in it first."""
        places = {x: k for k, x in enumerate(self._output)}
        return tuple(sorted(labels, key=lambda x: (places.get(x, -1), x)))

    def _grouped(self, term: _Term, *groups: Labels) -> Value:
        """A value with an axis for each group of its labels; none make an axis of one element."""
        value = self._arrange(term, tuple(x for group in groups for x in group)).value
        return value if all(len(g) == 1 for g in groups) else self._view(value, *groups)

    def _distinct(self, value: Value, labels: Labels) -> _Term:
        """An operand with the diagonals of its repeated labels."""
        kept = tuple(dict.fromkeys(labels))
        if len(kept) < len(labels):
            equation = Subscripts((labels,), kept).equation()
            value = self._rewriter.add(Einsum(equation), value)
        return _Term(value, kept)

    def _without_ones(self, term: _Term) -> _Term:
        """An operand without the axes that broadcast."""
        assert term.value.shape is not None
        pairs = zip(term.labels, term.value.shape, strict=True)
        kept = tuple(x for x, dim in pairs if same(self._sizes[x], dim) or not same(dim, 1))
        return (
            term
            if kept == term.labels
            else _Term(self._view(term.value, *((x,) for x in kept)), kept)
        )

    def _sum(self, term: _Term, needed: Collection[str]) -> _Term:
        axes = [k for k, label in enumerate(term.labels) if label not in needed]
        if not axes:
            return term
        indices = self._rewriter.constant(np.array(axes, np.int64))
        value = self._rewriter.add(ReduceSum(keepdims=False), term.value, indices)
        return _Term(value, tuple(x for x in term.labels if x in needed))

    def _arrange(self, term: _Term, order: Labels) -> _Term:
        perm = tuple(term.labels.index(label) for label in order)
        if perm == tuple(range(len(perm))):
            return term
        return _Term(self._rewriter.add(Transpose(perm), term.value), order)

    def _view(self, value: Value, *groups: Labels) -> Value:
        dims: list[Dim] = []
        for group in groups:
            size: Dim = 1
            for label in group:
                size = size * self._sizes[label]
            dims.append(size)
        shape = self._rewriter.shape_constant(tuple(dims))
        return self._rewriter.add(Reshape(1), value, shape)

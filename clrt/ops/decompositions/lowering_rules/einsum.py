"""Replaces Einsum by matrix products."""

from __future__ import annotations

from collections.abc import Collection

from clrt.ir.dims import Dim, is_unknown, provably_equal
from clrt.ir.graph import Node, Value
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.matmul.einsum import Einsum, Labels, Subscripts
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.movement.transpose import Transpose
from clrt.ops.op_builder import OpBuilder
from clrt.ops.pointwise.table import Mul
from clrt.ops.reduce.reduce import ReduceSum
from clrt.util.fast_dataclass import dataclass


@register_decomposition(Einsum, audience=DecompositionStage.PLANNING)
def _in_products(node: Node, make: OpBuilder) -> list[Value] | None:
    """Decomposes Einsum into matrix products, sums and transpositions.

    Diagonals of operands stay Einsum nodes. Returns None if a dim is unknown, or the node computes
    a diagonal only.
    """
    op = node.op_as(Einsum)
    operands = [v for v in node.inputs if v is not None]
    shapes = [v.shape for v in operands if v.shape is not None]
    if len(shapes) < len(operands) or any(is_unknown(d) for s in shapes for d in s):
        return None
    subscripts = op.subscripts([len(s) for s in shapes])
    first = subscripts.terms[0]
    if subscripts.is_view and len(set(first)) < len(first):
        return None
    products = _Products(op.sizes(subscripts, shapes), subscripts.output, make)
    return [products.value(operands, subscripts.terms)]


@dataclass(frozen=True)
class _Term:
    """An operand or intermediate product of an Einsum.

    Attributes:
        value: Tensor.
        labels: Einsum label of each axis, all different.
    """

    value: Value
    labels: Labels


class _Products:
    """Builds the nodes that replace an Einsum: products of two operands, sums, transpositions.

    Operands are multiplied from left to right; an axis is summed as early as possible. In a product
    of two operands, a label of both operands is a batch axis if it is needed later, else it is
    summed. A label of one operand is an axis of rows or columns.
    """

    def __init__(self, sizes: dict[str, Dim], output: Labels, make: OpBuilder) -> None:
        self._sizes = sizes
        self._output = output
        self._make = make
        self._add = make.add

    def value(self, inputs: list[Value], labels_of: tuple[Labels, ...]) -> Value:
        """Adds the nodes of the Einsum and returns its result.

        Args:
            inputs: Operands.
            labels_of: Labels of the axes of each operand.
        """
        terms = [self._distinct(v, labels) for v, labels in zip(inputs, labels_of, strict=True)]
        left, *others = [self._without_ones(t) for t in terms]
        while others:
            right = others.pop(0)
            later = set(self._output).union(*(t.labels for t in others))
            left = self._sum(left, later | set(right.labels))
            right = self._sum(right, later | set(left.labels))
            left = self._sum(self._multiply(left, right, later), later)
        return self._arrange(self._sum(left, set(self._output)), self._output).value

    def _multiply(self, left: _Term, right: _Term, later: Collection[str]) -> _Term:
        """Multiplies two terms.

        Args:
            left: First factor.
            right: Second factor.
            later: Labels of the Einsum's output and of operands that are not multiplied yet.

        Returns:
            The product. It may still have axes of labels that are not in `later`; the caller sums
            them.
        """
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
            return _Term(self._add(Mul(), *spread), order)
        if rows and columns and self._ordered((rows[0], columns[0]))[0] == columns[0]:
            left, right, rows, columns = right, left, columns, rows
        lead = [(x,) for x in batch]
        a = self._grouped(left, *lead, rows, summed)
        b = self._grouped(right, *lead, summed, columns)
        product = self._add(MatMul(), a, b)
        order = (*batch, *rows, *columns)
        if (len(rows), len(columns)) != (1, 1):
            product = self._view(product, *((x,) for x in order))
        return _Term(product, order)

    def _ordered(self, labels: Collection[str]) -> Labels:
        """Sorts labels by position in the Einsum's output; labels not in the output come first."""
        positions = {x: k for k, x in enumerate(self._output)}
        return tuple(sorted(labels, key=lambda x: (positions.get(x, -1), x)))

    def _grouped(self, term: _Term, *groups: Labels) -> Value:
        """Returns the tensor of a term, transposed and reshaped to one axis per group of labels.

        Args:
            term: An operand or product.
            groups: Groups in the order of the result's axes; axes of the labels in a group are
                merged. An empty group becomes an axis of size 1.
        """
        value = self._arrange(term, tuple(x for group in groups for x in group)).value
        return value if all(len(g) == 1 for g in groups) else self._view(value, *groups)

    def _distinct(self, value: Value, labels: Labels) -> _Term:
        """Returns an operand as a term with distinct labels.

        Axes of a repeated label become one axis, their diagonal.
        """
        distinct = tuple(dict.fromkeys(labels))
        if len(distinct) < len(labels):
            equation = Subscripts((labels,), distinct).equation()
            value = self._add(Einsum(equation), value)
        return _Term(value, distinct)

    def _without_ones(self, term: _Term) -> _Term:
        """Returns a term without the axes of size 1 whose label has another size elsewhere."""
        assert term.value.shape is not None
        pairs = zip(term.labels, term.value.shape, strict=True)
        kept = tuple(
            x
            for x, dim in pairs
            if provably_equal(self._sizes[x], dim) or not provably_equal(dim, 1)
        )
        return (
            term
            if kept == term.labels
            else _Term(self._view(term.value, *((x,) for x in kept)), kept)
        )

    def _sum(self, term: _Term, needed: Collection[str]) -> _Term:
        """Returns a term summed over all axes whose labels are not in `needed`."""
        axes = [k for k, label in enumerate(term.labels) if label not in needed]
        if not axes:
            return term
        value = self._add(ReduceSum(keepdims=False), term.value, self._make.ints(*axes))
        return _Term(value, tuple(x for x in term.labels if x in needed))

    def _arrange(self, term: _Term, order: Labels) -> _Term:
        """Returns a term with its axes transposed to the order of labels in `order`."""
        perm = tuple(term.labels.index(label) for label in order)
        if perm == tuple(range(len(perm))):
            return term
        return _Term(self._add(Transpose(perm), term.value), order)

    def _view(self, value: Value, *groups: Labels) -> Value:
        """Returns a value reshaped to one axis per group of labels; size 1 for an empty group."""
        dims: list[Dim] = []
        for group in groups:
            size: Dim = 1
            for label in group:
                size = size * self._sizes[label]
            dims.append(size)
        return self._make.reshaped(value, *dims)

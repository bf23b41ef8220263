"""Einsum: sums of products over labelled axes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from string import ascii_letters

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.builder import Builder
from clrt.ir.dims import Dim, Shape, is_unknown, provably_equal
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, Launch
from clrt.kernels.strided import contiguous_strides, copy_launches
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Op, Types
from clrt.ops.checks import need
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.movement.common import count
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import Reshape
from clrt.ops.pointwise.table import Mul
from clrt.ops.reduce.reduce import ReduceSum
from clrt.ops.registry import register

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Subscripts:
    """An einsum equation with expanded ellipses: axis k of an ellipsis, from the right, is "...k".

    Attributes:
        terms: Labels of each operand's axes.
        output: Labels of the output's axes.
    """

    terms: tuple[Labels, ...]
    output: Labels

    @property
    def is_view(self) -> bool:
        """Whether the equation only permutes axes or takes diagonals of one operand."""
        return len(self.terms) == 1 and set(self.terms[0]) == set(self.output)

    def equation(self) -> str:
        """Returns the explicit equation with a letter for each label."""
        labels = dict.fromkeys(label for term in self.terms for label in term)
        letters = dict(zip(labels, ascii_letters, strict=False))
        left, right = (
            ",".join("".join(letters[label] for label in term) for term in side)
            for side in (self.terms, (self.output,))
        )
        return f"{left}->{right}"


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    assert isinstance(node.op, Einsum)
    subscripts = node.op.subscripts([len(v.dims) for v in node.inputs if v is not None])
    return None if subscripts.is_view else "for views of one operand"


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    """Emits the strided copy of a transposition or diagonal."""
    x, y, op = node.arg(0), node.output, node.op
    assert isinstance(op, Einsum)
    if not count(y.dims):
        return []
    subscripts = op.subscripts([len(x.dims)])
    steps = dict.fromkeys(subscripts.output, 0)
    for label, step in zip(subscripts.terms[0], contiguous_strides(x.dims), strict=True):
        steps[label] += step
    strides = [steps[label] for label in subscripts.output]
    target = contiguous_strides(y.dims)
    return copy_launches(ctx, BufferArg(x), BufferArg(y), x.dtype, y.dims, strides, target)


@register
@dataclass(frozen=True)
class Einsum(Op):
    """NumPy's einsum, with any number of operands, diagonals, ellipses and implicit output.

    The kernel computes diagonals; planning decomposes the rest into Transpose, ReduceSum, Mul and
    MatMul.

    Numerics: float32 and float16 accumulate in float32; integers wrap.
    Source: ONNX Einsum, opset 12.
    """

    equation: str = ""

    supported_storages = None
    variants = (Variant("view", _emit, _reject),)

    def subscripts(self, ranks: Sequence[int]) -> Subscripts:
        """Parses the equation for operands of the given ranks.

        Raises:
            ShapeError: The equation is malformed or does not fit the operands' ranks.
        """
        text = "".join(self.equation.split())
        left, arrow, right = text.partition("->")
        sides = [*left.split(","), right]
        if not all(re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", side) for side in sides):
            raise self._error("is not made of letters, ',', '...' and one '->'")
        if len(sides) - 1 != len(ranks):
            raise self._error(f"has {len(sides) - 1} terms for {len(ranks)} operands")
        terms = tuple(self._term(s, rank) for s, rank in zip(sides, ranks, strict=False))
        dots = max((sum(x[0] == "." for x in term) for term in terms), default=0)
        ellipsis = tuple(f"...{k}" for k in reversed(range(dots)))
        letters = re.sub("[.,]", "", left)
        if not arrow:
            once = tuple(sorted(x for x in set(letters) if letters.count(x) == 1))
            return Subscripts(terms, (*ellipsis, *once))
        head, has_dots, tail = right.partition("...")
        output = (*head, *(ellipsis if has_dots else ()), *tail)
        if len(set(output)) < len(output) or not set(head + tail) <= set(letters):
            raise self._error("has an output label that is there twice, or in no operand")
        return Subscripts(terms, output)

    def _term(self, text: str, rank: int) -> Labels:
        head, has_dots, tail = text.partition("...")
        hidden = rank - len(head) - len(tail)
        if hidden < 0 or (hidden and not has_dots):
            raise self._error(f"has the term '{text}' for an operand of rank {rank}")
        return (*head, *(f"...{k}" for k in reversed(range(hidden))), *tail)

    def _error(self, what: str) -> ShapeError:
        return ShapeError(f"Einsum: the equation '{self.equation}' {what}.")

    def sizes(self, subscripts: Subscripts, shapes: Sequence[Shape]) -> dict[str, Dim]:
        """Returns the dim of each label; axes of size 1 broadcast.

        Raises:
            ShapeError: Two axes of one label differ.
        """
        sizes: dict[str, Dim] = {}
        for term, shape in zip(subscripts.terms, shapes, strict=True):
            for label, dim in zip(term, shape, strict=True):
                old = sizes.setdefault(label, dim)
                if provably_equal(old, dim) or provably_equal(dim, 1):
                    continue
                if isinstance(old, int) and isinstance(dim, int) and old != 1:
                    raise self._error(f"has one label for axes of {old} and {dim} elements")
                if provably_equal(old, 1) or isinstance(dim, int):
                    sizes[label] = dim
        return sizes

    def infer(self, inputs: Types) -> list[TensorType]:
        operands = [need(inputs, i, self) for i in range(max(len(inputs), 1))]
        if len({t.dtype for t in operands}) > 1:
            text = ", ".join(map(str, operands))
            raise ShapeError(f"Einsum: operands must have one dtype; they are {text}.")
        shapes = [t.shape for t in operands if t.shape is not None]
        if len(shapes) < len(operands):
            return [TensorType(operands[0].dtype, None)]
        subscripts = self.subscripts([len(s) for s in shapes])
        sizes = self.sizes(subscripts, shapes)
        return [TensorType(operands[0].dtype, tuple(sizes[x] for x in subscripts.output))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        arrays = [a for a in inputs if a is not None]
        dtype = arrays[0].dtype
        wide = arrays if dtype.kind in "iub" else [a.astype(np.float64) for a in arrays]
        equation = self.subscripts([a.ndim for a in arrays]).equation()
        with np.errstate(all="ignore"):
            result = np.einsum(equation, *wide, optimize=len(arrays) > 2)
        return (np.array(result).astype(dtype),)


@register_decomposition(Einsum, audience=DecompositionStage.PLANNING)
def _in_products(node: Node, make: Builder) -> list[Value] | None:
    """Decomposes an Einsum of known ranks into matrix products; diagonals stay Einsum nodes."""
    op = node.op
    assert isinstance(op, Einsum)
    operands = [v for v in node.inputs if v is not None]
    shapes = [v.shape for v in operands if v.shape is not None]
    if len(shapes) < len(operands) or any(is_unknown(d) for s in shapes for d in s):
        return None
    subscripts = op.subscripts([len(s) for s in shapes])
    first = subscripts.terms[0]
    if subscripts.is_view and len(set(first)) < len(first):
        return None
    products = _ProductBuilder(op.sizes(subscripts, shapes), subscripts.output, make)
    return [products.value(operands, subscripts.terms)]


@dataclass(frozen=True)
class _Term:
    """An operand or intermediate product; the labels of its axes are distinct."""

    value: Value
    labels: Labels


class _ProductBuilder:
    """Builds the nodes of an equation: transpositions, sums, and a product per further operand.

    Operands are multiplied from left to right, and each sum is taken as early as possible. A label
    of a pair of operands is a batch label (in both, and needed later), a row or column label (in
    one), or is summed.
    """

    def __init__(self, sizes: dict[str, Dim], output: Labels, make: Builder) -> None:
        self._sizes = sizes
        self._output = output
        self._make = make
        self._add = make.add

    def value(self, inputs: list[Value], labels_of: tuple[Labels, ...]) -> Value:
        """Adds the nodes and returns the result of the equation."""
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
        """Multiplies two terms; a shared label that is not needed later may remain to be summed."""
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
        """Sorts labels by their position in the output; labels absent from it come first."""
        positions = {x: k for k, x in enumerate(self._output)}
        return tuple(sorted(labels, key=lambda x: (positions.get(x, -1), x)))

    def _grouped(self, term: _Term, *groups: Labels) -> Value:
        """Merges the axes of each group of labels; an empty group becomes an axis of size 1."""
        value = self._arrange(term, tuple(x for group in groups for x in group)).value
        return value if all(len(g) == 1 for g in groups) else self._view(value, *groups)

    def _distinct(self, value: Value, labels: Labels) -> _Term:
        """Takes the diagonal of each repeated label of an operand."""
        distinct = tuple(dict.fromkeys(labels))
        if len(distinct) < len(labels):
            equation = Subscripts((labels,), distinct).equation()
            value = self._add(Einsum(equation), value)
        return _Term(value, distinct)

    def _without_ones(self, term: _Term) -> _Term:
        """Removes the axes of size 1 that broadcast against other operands."""
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
        axes = [k for k, label in enumerate(term.labels) if label not in needed]
        if not axes:
            return term
        value = self._add(ReduceSum(keepdims=False), term.value, self._make.ints(*axes))
        return _Term(value, tuple(x for x in term.labels if x in needed))

    def _arrange(self, term: _Term, order: Labels) -> _Term:
        perm = tuple(term.labels.index(label) for label in order)
        if perm == tuple(range(len(perm))):
            return term
        return _Term(self._add(Transpose(perm), term.value), order)

    def _view(self, value: Value, *groups: Labels) -> Value:
        dims: list[Dim] = []
        for group in groups:
            size: Dim = 1
            for label in group:
                size = size * self._sizes[label]
            dims.append(size)
        return self._add(Reshape(1), value, self._make.dims(dims))

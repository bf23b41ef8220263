"""Einsum: sums of products over labelled axes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_letters

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.dims import Dim, Shape, provably_equal
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, Launch
from clrt.kernels.strided import contiguous_strides, copy_launches
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import num_elements
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Subscripts:
    """An einsum equation whose ellipses are expanded to labels.

    Axis k of an ellipsis, counted from its right end, has the label "...k".

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
        """Returns the equation "terms->output" with a letter for each label, for NumPy."""
        labels = dict.fromkeys(label for term in self.terms for label in term)
        letters = dict(zip(labels, ascii_letters, strict=False))
        left, right = (
            ",".join("".join(letters[label] for label in term) for term in side)
            for side in (self.terms, (self.output,))
        )
        return f"{left}->{right}"


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    subscripts = node.op_as(Einsum).subscripts([len(v.dims) for v in node.inputs if v is not None])
    return None if subscripts.is_view else "for views of one operand"


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    """Emits a strided copy that permutes axes or takes diagonals; [] if the output is empty."""
    x, y, op = node.arg(0), node.output, node.op_as(Einsum)
    if not num_elements(y.dims):
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

    A kernel computes equations that only permute axes or take diagonals of one operand. Planning
    decomposes all others into Transpose, ReduceSum, Mul and MatMul.

    Attributes:
        equation: Subscripts, such as "ij,jk->ik".

    Numerics: float32 and float16 accumulate in float32; integers wrap.

    Source: ONNX Einsum, opset 12.
    """

    equation: str = ""

    supported_storages = None
    variants = (Variant("view", _emit, _reject),)

    def subscripts(self, ranks: Sequence[int]) -> Subscripts:
        """Parses the equation and expands its ellipses.

        Args:
            ranks: Rank of each operand.

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
            raise self._error("has an output label that occurs twice, or in no operand")
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
        """Returns the size of the axes of each label, by label.

        Args:
            subscripts: Parsed equation.
            shapes: Shape of each operand.

        Raises:
            ShapeError: Two axes of one label differ, and neither has size 1 (which broadcasts).
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

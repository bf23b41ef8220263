"""Checks that nodes compute each token independently.

The tokens of several sequences form one batch `[1, tokens, …]`. The results are those of each
sequence alone if no node except attention mixes tokens: the axis of tokens keeps its order, and is
not reduced, sliced or indexed.
"""

from __future__ import annotations

from collections.abc import Mapping

from clrt.ir.dims import Expr, Shape, product, provably_equal, symbol
from clrt.ir.graph import Node, Value
from clrt.models.decoders.io_names import TOKENS
from clrt.ops.attention.fused_rotary import FusedRotary
from clrt.ops.checks import normalize_axis
from clrt.ops.matmul.matmul import MatrixProduct
from clrt.ops.movement.concat import Concat, Split
from clrt.ops.movement.expand import Expand
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.gather_elements import GatherElements
from clrt.ops.movement.pad import Pad
from clrt.ops.movement.scatter_elements import ScatterElements
from clrt.ops.movement.slice import Slice
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import View
from clrt.ops.norm.layer_normalization import Normalization
from clrt.ops.norm.lp_normalization import LpNormalization
from clrt.ops.norm.softmax import SoftmaxBase
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.fused import Fused
from clrt.ops.pointwise.quantize_linear import Quantization
from clrt.ops.reduce.argmax import ArgExtremum
from clrt.ops.reduce.reduction import Reduce
from clrt.ops.reduce.top_k import TopK

_ALONG = (Concat, Split, SoftmaxBase, LpNormalization, ArgExtremum, TopK)
_LOOKED_UP = (GatherElements, ScatterElements)


def token_axis(shape: Shape | None) -> int | str | None:
    """Returns the index of the axis of tokens in a shape.

    The axis may have several elements per token.

    Returns:
        The index; None if no dim depends on the number of tokens; a message (str) if the rank is
        unknown, or tokens are not along a single axis.
    """
    if shape is None:
        return "its rank is not known"
    axes = [k for k, d in enumerate(shape) if isinstance(d, Expr) and TOKENS in d.symbols]
    if not axes:
        return None
    if len(axes) > 1 or _each(shape, axes[0]) is None:
        return f"tokens are not an axis of {[str(d) for d in shape]}"
    return axes[0]


def mixes_tokens(node: Node, tokens: Mapping[Value, int]) -> str | None:
    """Returns why a node may mix tokens; None if it does not.

    Args:
        tokens: Index of the axis of tokens, for each value that has one.
    """
    axes = {i: tokens[v] for i, v in enumerate(node.inputs) if v is not None and v in tokens}
    op = node.op
    if not axes:
        return None
    if isinstance(op, (Pointwise, Fused, FusedRotary)):
        return _aligned(node, axes)
    if isinstance(op, Quantization):
        rank = len(node.arg(0).shape or ())
        along = axes.get(0) == normalize_axis(op.axis, rank, op)
        return "it operates along the token axis" if along else _aligned(node, axes)
    if isinstance(op, MatrixProduct):
        return _product(node, axes)
    if isinstance(op, View):
        return _viewed(node, axes.get(0))
    axis = axes.get(0)
    if isinstance(op, Gather):
        return _gathered(op, node, axes)
    if isinstance(op, Concat) and len(axes) < len(node.inputs):
        return "it concatenates values with and without tokens"
    if isinstance(op, _LOOKED_UP) and len(set(axes.values())) > 1:
        return "its operands have tokens on different axes"
    if axis is None:
        return (
            None
            if isinstance(op, Expand)
            else "it reads tokens as an input that must only depend on sizes"
        )
    rank = len(node.arg(0).shape or ())
    used = _used_axes(node, rank)
    if used is None:
        return "clrt cannot tell whether it mixes tokens"
    return "it operates along the token axis" if axis in used else None


def _used_axes(node: Node, rank: int) -> set[int] | None:
    """Returns the axes of input 0 along which a node moves or combines elements.

    Args:
        rank: Rank of input 0.

    Returns:
        The axes; None if clrt does not know them for this op.
    """
    op = node.op
    if isinstance(op, (Transpose, Expand)):
        return set()
    if isinstance(op, (*_ALONG, *_LOOKED_UP)):
        first = normalize_axis(op.axis, rank, op)
        return set(range(first, rank)) if getattr(op, "flatten", False) else {first}
    if isinstance(op, Normalization):
        return set(range(normalize_axis(op.axis, rank, op), rank))
    if isinstance(op, Reduce):
        return set(op.axes_of(node.input_types, rank))
    if isinstance(op, (Slice, Pad)):
        numbers = [v.numbers if v is not None else None for v in node.inputs[1:4]]
        axes = numbers[2]
        if isinstance(op, Slice) and axes is None and numbers[0] is not None:
            return set(range(numbers[0].size))
        return None if axes is None else {normalize_axis(int(a), rank, op) for a in axes.flat}
    return None


def _each(shape: Shape, axis: int) -> int | None:
    """Returns the number of elements per token along an axis; None if that is not a whole number.

    Args:
        shape: Shape with the axis.
        axis: Index of an axis whose size depends on the number of tokens.
    """
    dim, tokens = shape[axis], symbol(TOKENS)
    if provably_equal(dim, tokens):
        return 1
    assert isinstance(dim, Expr)
    counts = list(dim.terms.values())
    return counts[0] if len(counts) == 1 and provably_equal(dim, tokens * counts[0]) else None


def _aligned(node: Node, axes: Mapping[int, int]) -> str | None:
    """Returns why an elementwise node mixes tokens; None if it does not.

    Args:
        node: The elementwise node.
        axes: Axis of tokens by input index, for inputs that have one.
    """
    if isinstance(node.op, FusedRotary):
        return None  # its shape rules guarantee that x and the tables have the same positions
    rank = len(node.output.shape or ())
    behind = set()
    for index, axis in axes.items():
        behind.add(len(node.arg(index).shape or ()) - axis)
    if len(behind) != 1:
        return "its operands have tokens on different axes"
    at = behind.pop()
    for index, value in enumerate(node.inputs):
        shape = () if value is None else value.shape or ()
        if index not in axes and len(shape) >= at and not provably_equal(shape[-at], 1):
            return "an operand varies along the token axis but is not computed per token"
    dims = {str((node.arg(i).shape or ())[k]) for i, k in axes.items()}
    dims.add(str((node.output.shape or ())[rank - at]))
    return None if len(dims) == 1 else "its operands have different numbers of tokens"


def _product(node: Node, axes: Mapping[int, int]) -> str | None:
    """Returns why a matrix product mixes tokens; None if tokens are rows of A or columns of B.

    Args:
        axes: Axis of tokens by input index, for inputs that have one.
    """
    transposed = [
        any(getattr(node.op, name, 0) for name in pair)
        for pair in (("trans_a", "transA"), ("trans_b", "transB"))
    ]
    ranks = [len(node.arg(i).shape or ()) for i in (0, 1)]
    # Reduced axes of A and B. B may have tokens along its columns: products for rotary angles do.
    columns, rows = ranks[0] - 1 - transposed[0], ranks[1] - 2 + transposed[1]
    if {0, 1} <= axes.keys() or axes.get(0) == columns or axes.get(1) == rows:
        return "it multiplies tokens with each other"
    return None


def _viewed(node: Node, axis: int | None) -> str | None:
    """Returns why a view mixes elements of several tokens; None if it does not.

    Args:
        node: The view.
        axis: Axis of tokens of its input 0; None if only another input depends on tokens.
    """
    before, after = node.arg(0).shape or (), node.output.shape or ()
    after_axis = token_axis(after)
    if axis is None or not isinstance(after_axis, int):
        return "it reads tokens as an input that must only depend on sizes"
    heads = product(before[:axis]), product(after[:after_axis])
    first = provably_equal(heads[0], 1) and provably_equal(heads[1], 1)
    each = _each(before, axis), _each(after, after_axis)
    if first or (provably_equal(*heads) and each[0] == each[1]):
        return None
    return "it merges elements of several tokens into one axis"


def _gathered(op: Gather, node: Node, axes: Mapping[int, int]) -> str | None:
    """Returns why a Gather mixes or selects tokens; None if it does not.

    Args:
        op: The op of `node`.
        node: The Gather node.
        axes: Axis of tokens by input index, for inputs that have one.
    """
    rank = len(node.arg(0).shape or ())
    if len(axes) > 1:
        return "it looks up tokens by tokens"
    if axes.get(0) == normalize_axis(op.axis, rank, op):
        return "it selects some of the tokens"
    return None

"""Restricts the computation of logits to the requested tokens."""

from __future__ import annotations

from clrt.ir.dims import provably_equal, substitute, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.models.decoders.io_names import TOKENS
from clrt.models.decoders.paging.refusal import refusal
from clrt.models.decoders.paging.token_axis import mixes_tokens, token_axis
from clrt.ops.checks import normalize_axis
from clrt.ops.matmul.matmul import MatrixProduct
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.slice import Slice
from clrt.ops.movement.views import Reshape, View
from clrt.ops.op_builder import OpBuilder
from clrt.ops.pointwise.cast import Cast
from clrt.passes.matching import scalar

_ROWS = "rows"


def wanted_logits(build: OpBuilder, logits: Value, rows: Value) -> tuple[Value, Value]:
    """Rebuilds the last nodes of a decoder so that they compute logits of requested tokens only.

    All nodes after the last residual are rebuilt; the last residual is the last node that combines
    several computed values. If the file computes only the logits of the last token, the node that
    selects this token is removed.

    Args:
        logits: The logits in the original graph.
        rows: int32 `[rows]`, indices of the tokens whose logits are requested.

    Returns:
        The head's input, float32 `[rows, hidden]`, and the logits, float32 `[rows, vocabulary]`.

    Raises:
        UnsupportedError: A rebuilt node mixes tokens, or there is no axis of tokens.
    """
    chain: list[Node] = []
    value = logits
    while (node := value.producer) is not None:
        followed = [v for v in node.inputs if v is not None and not v.is_constant]
        if len(followed) != 1 or len(node.outputs) != 1 or node.input(0) is not followed[0]:
            break
        before, axis = followed[0], token_axis(followed[0].shape)
        if token_axis(value.shape) is None and axis is not None:
            chain.append(node)
            return _rebuild(build, _gather_rows(build, before, rows), chain, node)
        reason = mixes_tokens(node, {before: axis}) if isinstance(axis, int) else None
        if reason is not None:
            raise refusal(reason, node)
        chain.append(node)
        value = before
    return _rebuild(build, _gather_rows(build, value, rows), chain, None)


def _gather_rows(build: OpBuilder, value: Value, rows: Value) -> Value:
    axis = token_axis(value.shape)
    if (
        not isinstance(axis, int)
        or value.shape is None
        or not provably_equal(value.shape[axis], symbol(TOKENS))
    ):
        raise refusal(
            f"'{value.name}' {value.type}, from which logits are computed, has no axis of tokens"
        )
    return build.add(Gather(axis=axis), value, rows)


def _rebuild(
    build: OpBuilder, value: Value, chain: list[Node], last: Node | None
) -> tuple[Value, Value]:
    """Adds a copy of a chain of nodes, which computes the logits of the requested tokens only.

    Args:
        value: Input of the copy: the requested tokens' part of the chain's input.
        chain: Nodes of the original graph, last one first.
        last: Node of the chain that selects the last token; None if no node does. If there is such
            a node, neither the node nor the views of the chain are copied.

    Returns:
        Input of the copy's last matrix product, and the logits: float32 matrices with a row per
        requested token.

    Raises:
        UnsupportedError: `last` does something else than select the last token, or the width of a
            result is not fixed.
    """
    hidden = value
    for node in reversed(chain):
        if isinstance(node.op, MatrixProduct):
            hidden = value
        if node is last:
            value = _without_axis(build, value, node)
        elif last is not None and isinstance(node.op, View):
            continue  # views of one token only move axes of size 1
        else:
            others = [None if v is None else _of_rows(build, v) for v in node.inputs[1:]]
            value = build.add(node.op, value, *others)
    return _matrix(build, hidden), _matrix(build, value)


def _matrix(build: OpBuilder, value: Value) -> Value:
    """Reshapes a value of all requested tokens to float32 `[rows, width]`, a row per token."""
    shape = build.dims((symbol(_ROWS), last_number(value)))
    matrix = build.add(Reshape(1), value, shape)
    return matrix if matrix.dtype is DType.FLOAT32 else build.add(Cast(DType.FLOAT32), matrix)


def last_number(value: Value) -> int:
    """Returns the last dim of a value's shape.

    Raises:
        UnsupportedError: The dim is symbolic, or the shape unknown or empty.
    """
    dim = value.shape[-1] if value.shape else None
    if not isinstance(dim, int):
        raise refusal(f"'{value.name}' {value.type} has no fixed width")
    return dim


def _without_axis(build: OpBuilder, value: Value, node: Node) -> Value:
    """Returns `value` in place of the output of a node that selects the last token of a step.

    Args:
        build: Builder of the rewritten graph.
        value: The node's input for requested tokens, which need no selection.
        node: The node of the original graph.

    Raises:
        UnsupportedError: The node does something else than select the last token.
    """
    rank = len(node.arg(0).shape or ())
    axis = token_axis(node.arg(0).shape)
    if isinstance(node.op, Gather):
        index = node.arg(1).type.data
        is_last = index is not None and index.size == 1 and _is_last(index.flat[0])
        if is_last and normalize_axis(node.op.axis, rank, node.op) == axis:
            return value
    if isinstance(node.op, Slice):
        start, axes = node.arg(1).type.data, node.input(3)
        at = None if axes is None else scalar(axes)
        is_one = start is not None and start.size == 1 and _is_last(start.flat[0])
        if is_one and at is not None and int(at) % rank == axis:
            return value
    raise refusal("it does not just select the last token of a step", node)


def _is_last(index: object) -> bool:
    """Returns whether an index, possibly symbolic, selects the last token of a step."""
    return index == -1 if isinstance(index, int) else str(index) in ("-1", f"-1+{TOKENS}")


def _of_rows(build: OpBuilder, value: Value) -> Value:
    """Returns a constant shape for requested tokens: its symbol "tokens" becomes "rows".

    Args:
        build: Builder of the rewritten graph.
        value: A constant; returned unchanged if it has no symbolic elements.
    """
    data = value.type.data
    if data is None or value.has_numbers:
        return value
    bound = {TOKENS: symbol(_ROWS)}
    return build.dims([substitute(d, bound) for d in data.flat])

"""Multi-head softmax(Q K^T * scale + mask) V -> FusedAttention."""

from __future__ import annotations

import numpy as np

from clrt.ir.dims import Dim, Shape, provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ir.pattern import Captures, any_value, op
from clrt.ops.attention.fused_attention import MAX_HEAD_SIZE, FusedAttention
from clrt.ops.movement.transpose import Transpose
from clrt.ops.norm.softmax import Softmax
from clrt.ops.op_builder import OpBuilder
from clrt.ops.pointwise.table import Add, Equal, IsNaN, Where
from clrt.ops.reduce.reduce import ReduceMax
from clrt.passes.attention_matching import (
    Choice,
    Heads,
    Scores,
    as_product,
    find_heads,
    find_scores,
    merged,
)
from clrt.passes.canonicalize_views import reshape
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import equals, int_attribute, produced_by, uniform
from clrt.util.fast_dataclass import dataclass


@dataclass
class _AttentionMatch:
    """Attention matched in a graph.

    Attributes:
        q: Queries before their heads were split.
        k: Keys before their heads were split.
        v: Values before their heads were split.
        scores: Scaled and masked scores.
        final: Node whose output is replaced: the product of attention weights and values, or the
            Transpose after this product.
        nodes: All nodes of the attention, which the rewrite makes dead.
        nan_to_zero: Whether result rows without any visible key become 0 instead of NaN.
    """

    q: Heads
    k: Heads
    v: Heads
    scores: Scores
    final: Node
    nodes: list[Node]
    nan_to_zero: bool

    @property
    def score_shape(self) -> Shape:
        """Shape of the scores: [batch, heads, queries, keys]."""
        return (self.q.batch, self.q.count, self.q.length, self.k.length)


_WEIGHTS = any_value("weights")
# ReduceMax(mask) == -inf, as in the function body of ONNX's Attention.
_HIDES_ALL = op(
    Equal, op(ReduceMax, any_value("mask"), equals(-1), ..., keepdims=1), equals(-np.inf)
)
# Zeroes rows that are NaN, or that a mask hides.
_GUARD = op(Where, op(IsNaN, _WEIGHTS, name="test") | _HIDES_ALL, equals(0), _WEIGHTS)


class FuseAttention(Pass):
    """MatMul(Softmax(scaled, masked scores), values) -> FusedAttention.

    q, k and v are traced back through the Reshape and Transpose that split the heads, and the
    Expand that repeats heads in grouped-query attention. They are then read from projections
    [batch, tokens, columns], or from columns of one projection. If that fails, they are read as
    [batch, heads, tokens, head size], as rotary embeddings and caches produce them. Constant
    factors of the scores, of q and of k are multiplied to one scale. Several masks are combined
    into one by nodes before the fused op. A Where that replaces NaN by 0 becomes `nan_to_zero`.
    """

    name = "fuse_attention"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Softmax)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        weights, nodes, guard = _without_guard(view, node)
        user = view.only_user(weights)
        values = as_product(user)
        if user is None or values is None or values.a is not weights:
            return None
        attention = _attention(view, node, user, [*nodes, user], guard is not None)
        if isinstance(attention, str):
            return Miss(attention, node)
        mask = None if guard is None else guard.values.get("mask")
        if mask is not None and attention.scores.masks != [mask]:
            return Miss("rows are zeroed by a mask other than that of the scores", node)
        return Match(view, node, replaced_nodes=attention.nodes, payload=attention)

    def rewrite(self, match: Match) -> Patch:
        attention, build = match.payload, match.builder(self.name)
        assert isinstance(attention, _AttentionMatch)
        q, k, v = attention.q, attention.k, attention.v
        fused = FusedAttention(
            num_heads=q.count,
            kv_num_heads=k.count,
            head_size=q.size,
            v_head_size=v.size,
            q_offset=q.offset,
            k_offset=k.offset,
            v_offset=v.offset,
            scale=float(np.float32(attention.scores.scale * q.scale * k.scale)),
            softcap=float(np.float32(attention.scores.softcap)),
            nan_to_zero=attention.nan_to_zero,
        )
        operands = [merged(build, heads) for heads in (q, k, v)]
        mask = _mask(build, attention)
        value = build.add(fused, *operands, mask)
        old = attention.final.output
        return build.patch({old: reshape(build, value, old)})


def _without_guard(view: GraphView, softmax: Node) -> tuple[Value, list[Node], Captures | None]:
    """Looks through a Where after a softmax that zeroes rows without any visible key.

    Returns:
        The attention weights after the Where, the nodes that compute them from the scores, and the
        captures of the Where. Without such a Where, the softmax output, [softmax] and None.
    """
    weights = softmax.output
    users = [] if view.is_output(weights) else view.users(weights)
    for user in users:
        found = _GUARD.find(user.output, view)
        if isinstance(found, Captures) and found["weights"] is weights:
            test = [found.node("test")] if "test" in found.values else []
            if len(users) == 1 + len(test):
                return user.output, [softmax, *test, user], found
    return weights, [softmax], None


def _attention(
    view: GraphView, softmax: Node, product: Node, nodes: list[Node], nan_to_zero: bool
) -> _AttentionMatch | str:
    """Matches the attention that a softmax belongs to; returns a reject reason if unsupported.

    Args:
        view: Graph of the nodes.
        softmax: Softmax of the scores.
        product: Product of the attention weights and the values.
        nodes: Nodes matched already, which the rewrite makes dead.
        nan_to_zero: Whether result rows without any visible key become 0 instead of NaN.
    """
    rank = softmax.output.type.rank
    if softmax.output.dtype not in (DType.FLOAT32, DType.FLOAT16):
        return f"there is no attention kernel for {softmax.output.dtype}"
    if rank not in (3, 4):
        return f"the scores have rank {rank}, not 3 or 4"
    if int_attribute(softmax.op, "axis", -1) not in (-1, rank - 1):
        return "the softmax is not over the last axis"
    scores = find_scores(softmax.arg(0))
    if not isinstance(scores, Scores):
        return scores or "its scores are no product of two matrices"
    keys, values = as_product(scores.product), as_product(product)
    assert keys is not None and values is not None
    if keys.trans_a or values.trans_a:
        return "the queries or the weights are transposed"
    results = [
        find_heads(keys.a, transposed=False),
        find_heads(keys.b, transposed=not keys.trans_b),
        find_heads(values.b, transposed=values.trans_b),
    ]
    heads = [p for p in results if isinstance(p, Heads)]
    if len(heads) < 3:
        return next(p for p in results if isinstance(p, str))
    q, k, v = heads
    final = _merging_transpose(view, product, q.count)
    if isinstance(final, str):
        return final
    replaced = list(dict.fromkeys([*scores.nodes, *nodes, final]))
    attention = _AttentionMatch(q, k, v, scores, final, replaced, nan_to_zero)
    return _disagreement(attention) or attention


def _merging_transpose(view: GraphView, product: Node, count: int) -> Node | str:
    """Finds the Transpose after an attention that swaps the heads axis and the tokens axis.

    Args:
        view: Graph of the nodes.
        product: Product of the attention weights and the values.
        count: Number of heads.

    Returns:
        The Transpose; `product` itself if there is one head and no Transpose; else a reject reason.
    """
    rank = product.output.type.rank
    user = view.only_user(product.output)
    if user is not None and isinstance(user.op, Transpose) and rank == 4:
        if user.op.order(4) == (0, 2, 1, 3):
            return user
        return f"its result is transposed by {user.op.order(4)}, not by (0, 2, 1, 3)"
    if count == 1:
        return product
    return "its result is not transposed back to [B, S, H, D]"


def _disagreement(attention: _AttentionMatch) -> str | None:
    """Returns why q, k, v and masks do not fit one FusedAttention node; None if they do."""
    q, k, v = attention.q, attention.k, attention.v
    if not (provably_equal(q.batch, k.batch) and provably_equal(k.batch, v.batch)):
        return f"batch sizes differ: {q.batch}, {k.batch}, {v.batch}"
    if not provably_equal(k.length, v.length):
        return f"there are {k.length} keys but {v.length} values"
    num_heads = k.count * k.repeat
    if k.count != v.count or k.repeat != v.repeat or q.repeat != 1 or num_heads not in (q.count, 1):
        return f"{q.count} heads of q, {num_heads} of k, {v.count * v.repeat} of v"
    if q.size != k.size:
        return f"head sizes differ: {q.size} and {k.size}"
    if v.scale != 1.0:
        return "the values are scaled"
    if max(q.size, v.size) > MAX_HEAD_SIZE:
        return f"its heads are wider than {MAX_HEAD_SIZE}"
    for entry in attention.scores.masks:
        mask = entry.condition if isinstance(entry, Choice) else entry
        inner = _unexpanded(mask)
        if inner.shape is None or not _broadcasts(inner.shape, attention):
            return f"mask '{mask.name}' {mask.type} does not broadcast to {attention.score_shape}"
    return None


def _aligned(shape: Shape, attention: _AttentionMatch) -> list[tuple[Dim, Dim]]:
    """Pairs the dims of a mask shape with those of the scores, starting at the last axis.

    Scores of rank 3 have no heads axis.
    """
    rank = attention.scores.product.output.type.rank
    target = attention.score_shape if rank == 4 else (attention.q.batch, *attention.score_shape[2:])
    return list(zip(reversed(shape), reversed(target), strict=False))


def _broadcasts(shape: Shape, attention: _AttentionMatch) -> bool:
    """Whether a mask of shape `shape` broadcasts to the scores of an attention."""
    rank = attention.scores.product.output.type.rank
    fits = all(provably_equal(d, 1) or provably_equal(d, t) for d, t in _aligned(shape, attention))
    return fits and len(shape) <= (rank or 0)


def _unexpanded(mask: Value) -> Value:
    """Returns a mask as it was before Expand nodes; the attention kernel broadcasts by strides."""
    while (expand := produced_by(mask, "Expand")) is not None:
        mask = expand.arg(0)
    return mask


def _mask(build: OpBuilder, attention: _AttentionMatch) -> Value | None:
    """Combines all masks of an attention into one, which is added to the scores; None if none.

    A Where mask replaces earlier masks at the scores that it masks, instead of being added. So if a
    Where masks all keys of a row, their scores are equal.
    """
    total: Value | None = None
    number_type = attention.scores.product.output.dtype.numpy
    for mask in attention.scores.masks:
        if isinstance(mask, Choice):
            visible = build.constant(np.zeros((), number_type)) if total is None else total
            level = build.constant(np.asarray(uniform(mask.number), number_type))
            pair = (visible, level) if mask.keep else (level, visible)
            total = build.add(Where(), _unexpanded(mask.condition), *pair)
        else:
            added = _unexpanded(mask)
            total = added if total is None else build.add(Add(), total, added)
    return None if total is None else _of_rank_4(build, total, attention)


def _of_rank_4(build: OpBuilder, mask: Value, attention: _AttentionMatch) -> Value:
    """Inserts a heads axis of size 1 behind the batch axis of a mask of rank 3.

    Args:
        build: Builder.
        mask: Mask to add to the scores.
        attention: The match. If its scores have rank 4, the mask fits as it is.

    Returns:
        The mask of rank 4; `mask` unchanged if its rank is below 3 or the scores have rank 4.
    """
    shape = mask.shape
    assert shape is not None
    if attention.scores.product.output.type.rank == 4 or len(shape) < 3:
        return mask
    like = Value("", type(mask.type)(mask.dtype, (shape[0], 1, *shape[1:])))
    return reshape(build, mask, like)

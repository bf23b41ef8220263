"""Matchers for the scores and split heads of an attention written out in primitive ops."""

from __future__ import annotations

from dataclasses import field

from clrt.ir.dims import Dim, Shape, provably_equal, same_shape
from clrt.ir.graph import Node, Value
from clrt.ops.movement.transpose import Transpose
from clrt.ops.op_builder import OpBuilder
from clrt.passes.canonicalize_matmul import Operands, strip_transposes
from clrt.passes.canonicalize_views import reshape
from clrt.passes.matching import (
    int_attribute,
    op_name,
    operand_orders,
    produced_by,
    scaled,
    uniform,
)
from clrt.util.fast_dataclass import dataclass

# Maximum mask value: at or below it, adding and replacing give the same float32, since the score is
# lost in rounding.
MASKED = -1e30


@dataclass(frozen=True)
class Choice:
    """Attention mask as a Where node, which replaces masked scores by a number.

    Attributes:
        condition: Condition of the Where.
        number: Value that masked scores become; all its elements are equal, at most `MASKED`.
        keep: True if scores are kept where the condition is true; False if where it is false.
    """

    condition: Value
    number: Value
    keep: bool


@dataclass
class Scores:
    """Attention scores: scale * (q k^T) with masks.

    Attributes:
        product: The MatMul or FusedMatMul node of q and k^T.
        scale: Factor of the product.
        softcap: Limit of the scores before masks, by softcap * tanh(scores / softcap); 0 for none.
        masks: Masks in order of application: a Value is added, a Choice replaces scores.
        nodes: All nodes from the product (inclusive) to the softmax (exclusive).
    """

    product: Node
    scale: float = 1.0
    softcap: float = 0.0
    masks: list[Value | Choice] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


@dataclass
class Heads:
    """Tensor that an attention's q, k or v is computed from, before its heads were split.

    Attributes:
        base: Tensor [batch, length, count, size], or [batch, count, length, size] if `by_head`. If
            `count` is 1, it may also be [batch, length, size] or [batch, 1, length, size].
        batch: Batch size.
        length: Number of tokens.
        count: Number of heads.
        size: Head size in elements.
        scale: Constant factor: the attention operand is `scale` times `base`.
        by_head: Whether the heads axis of `base` comes before the tokens axis.
        repeat: Number of adjacent query heads that share each head.
        source: Tensor [batch, length, columns], of which `base` is a reshaped range of columns;
            None if there is none.
        offset: First column of the heads in `source`.
    """

    base: Value
    batch: Dim
    length: Dim
    count: int
    size: int
    scale: float
    by_head: bool = False
    repeat: int = 1
    source: Value | None = None
    offset: int = 0

    @property
    def merged_shape(self) -> Shape:
        """Shape of the operand with heads side by side: [batch, tokens, heads * head size]."""
        return (self.batch, self.length, self.count * self.size)


def as_product(node: Node | None) -> Operands | None:
    """Returns the operands of a MatMul or of a FusedMatMul without epilogue; else None."""
    if node is None or op_name(node) not in ("MatMul", "clrt.FusedMatMul"):
        return None
    return None if getattr(node.op, "steps", ()) else strip_transposes(node)


def find_scores(value: Value) -> Scores | str | None:
    """Matches attention scores: a matrix product q k^T that may be scaled, soft-capped and masked.

    Returns:
        The scores; a reject reason for a near miss; None if the value does not originate in a
        product.
    """
    node = value.producer
    if node is None:
        return None
    if as_product(node) is not None:
        return Scores(node, nodes=[node])
    pair = scaled(node)
    if pair is not None:
        limited = produced_by(pair[0], "Tanh")
        inner = find_scores(pair[0] if limited is None else limited.arg(0))
        if isinstance(inner, Scores):
            if inner.masks or inner.softcap:
                return "the scores are scaled after a mask was added or they were limited"
            inner.scale *= pair[1]
            if limited is not None:
                inner.softcap = pair[1]
                inner.nodes.append(limited)
            inner.nodes.append(node)
        return inner
    if op_name(node) == "Add":
        for scores, mask in operand_orders(node):
            inner = find_scores(scores)
            if isinstance(inner, Scores) and same_shape(scores.shape, value.shape):
                inner.masks.append(mask)
                inner.nodes.append(node)
                return inner
        return None
    return _where(node) if op_name(node) == "Where" else None


def _where(node: Node) -> Scores | str | None:
    """Matches a Where node that masks attention scores.

    Returns:
        The scores with the mask appended; a reject reason for a near miss; None if neither operand
        of the Where is attention scores.
    """
    for scores, number, keep in ((1, 2, True), (2, 1, False)):
        inner = find_scores(node.arg(scores))
        if not isinstance(inner, Scores):
            continue
        if not same_shape(node.arg(scores).shape, node.output.shape):
            return "a Where broadcasts the scores"
        masked = uniform(node.arg(number))
        if masked is None or masked > MASKED:
            return f"masked scores become {masked}, which differs from adding it"
        inner.masks.append(Choice(node.arg(0), node.arg(number), keep))
        inner.nodes.append(node)
        return inner
    return None


def find_heads(value: Value, *, transposed: bool) -> Heads | str:
    """Traces an attention operand back to the tensor before its heads were split.

    Args:
        value: q, k or v of the attention, of rank 4; of rank 3 if there is one head.
        transposed: True if the value is [batch, heads, head size, tokens], as MatMul reads k; False
            if it is [batch, heads, tokens, head size].

    Returns:
        The heads; a reject reason if the split is not recognised.
    """
    if value.shape is None or len(value.shape) not in (3, 4):
        return f"'{value.name}' {value.type} is not [B, H, S, D]"
    rank, scale, repeat = len(value.shape), 1.0, 1
    perm = tuple(range(rank))
    while True:
        node, pair = value.producer, scaled(value.producer)
        if pair is not None:
            value, scale = pair[0], scale * pair[1]
        elif node is not None and isinstance(node.op, Transpose):
            order = node.op.order(rank)
            perm, value = tuple(order[p] for p in perm), node.arg(0)
        elif perm[1] == 1 and (view := _viewed(value)) is not None:
            value, repeat, scale = view[0], repeat * view[1], scale * view[2]
            perm = tuple({2: 3, 3: 2}.get(p, p) for p in perm) if view[3] else perm
        else:
            break
    if transposed:
        perm = (*perm[:-2], perm[-1], perm[-2])
    heads = _with_layout(value, perm, scale)
    if heads is None:
        return f"the heads of '{value.name}' {value.type} are not side by side (order {perm})"
    heads.repeat = repeat
    return heads if heads.by_head else _unsplit(heads)


def _viewed(value: Value) -> tuple[Value, int, float, bool] | None:
    """Looks through a Reshape to [batch, heads, tokens, head size], and ops before the Reshape.

    These ops repeat heads, scale, or swap the last two axes, as some exporters do with k.

    Returns:
        The source [batch, heads / n, tokens, head size], the repetition n of its heads, the scale,
        and whether the last two axes are swapped; None if `value` has another form.
    """
    view = produced_by(value, "Reshape")
    if view is None or value.shape is None or len(value.shape) != 4:
        return None
    batch, count, length, size = value.shape
    source, scale = view.arg(0), 1.0
    while (pair := scaled(source.producer)) is not None:
        source, scale = pair[0], scale * pair[1]
    transpose = source.producer
    swapped = (
        transpose is not None
        and isinstance(transpose.op, Transpose)
        and transpose.op.order(3) == (0, 2, 1)
    )
    if swapped:
        assert transpose is not None
        merge = produced_by(transpose.arg(0), "Reshape")
        if merge is None or not same_shape(source.shape, (batch * count, length, size)):
            return None
        source, length, size = merge.arg(0), size, length
    if same_shape(source.shape, (batch, count, length, size)):
        return source, 1, scale, swapped
    expand = produced_by(source, "Expand")
    split = None if expand is None else produced_by(expand.arg(0), "Reshape")
    if split is None or source.shape is None or len(source.shape) != 5:
        return None
    inner, num_heads, repeat = split.arg(0), source.shape[1], source.shape[2]
    if not isinstance(num_heads, int) or not isinstance(repeat, int) or num_heads * repeat != count:
        return None
    shapes = (
        (source.shape, (batch, num_heads, repeat, length, size)),
        (split.output.shape, (batch, num_heads, 1, length, size)),
        (inner.shape, (batch, num_heads, length, size)),
    )
    matches = all(same_shape(actual, expected) for actual, expected in shapes)
    return (inner, repeat, scale, swapped) if matches else None


def _with_layout(value: Value, perm: tuple[int, ...], scale: float) -> Heads | None:
    """Returns the heads of an attention operand before a Transpose; None if unsupported.

    Args:
        value: Operand before the Transpose.
        perm: Axis of `value` for each axis of [batch, heads, tokens, head size]; for each axis of
            [batch, tokens, head size] if `value` has rank 3.
        scale: Factor applied to the value after the Transpose.
    """
    shape = value.shape
    assert shape is not None
    size = shape[-1]
    if not isinstance(size, int):
        return None
    if perm == (0, 2, 1, 3):
        count = shape[2]
        if not isinstance(count, int):
            return None
        return Heads(value, shape[0], shape[1], count, size, scale)
    if perm == (0, 1, 2) or (perm == (0, 1, 2, 3) and provably_equal(shape[1], 1)):
        return Heads(value, shape[0], shape[-2], 1, size, scale)
    if perm == (0, 1, 2, 3) and isinstance(shape[1], int):
        return Heads(value, shape[0], shape[2], shape[1], size, scale, by_head=True)
    return None


def _unsplit(heads: Heads) -> Heads:
    """Finds the tensor [batch, tokens, columns] that heads are split from; returns `heads`.

    Looks through Reshape, scaling, Split and Slice, and sets `source` and `offset` of `heads` to
    the tensor and to the first column of the heads in it. If there is no such tensor, only scale
    and base are updated.
    """
    value = heads.base
    view = produced_by(value, "Reshape")
    if view is not None:
        value = view.arg(0)
    while (pair := scaled(value.producer)) is not None:
        value, heads.scale = pair[0], heads.scale * pair[1]
        heads.base = value
    if not same_shape(value.shape, heads.merged_shape):
        return heads
    heads.source = value
    while (part := part_of(heads.source)) is not None:
        heads.source, start = part
        heads.offset += start
    return heads


def part_of(value: Value) -> tuple[Value, int] | None:
    """Looks through a Split or Slice along the last axis.

    Returns:
        (input of the Split or Slice, index of the input's column that is the first column of
        `value`); None if `value` has another producer or the index is not constant.
    """
    node, shape = value.producer, value.shape
    if node is None or shape is None:
        return None
    rank = len(shape)
    if op_name(node) == "Split" and int_attribute(node.op, "axis", 0) % rank == rank - 1:
        before = node.outputs[: node.outputs.index(value)]
        widths = [v.shape[-1] for v in before if v.shape and isinstance(v.shape[-1], int)]
        if len(widths) == len(before):
            return node.arg(0), sum(widths)
    if op_name(node) == "Slice" and len(node.inputs) >= 4:
        numbers = [v.numbers if v is not None and v.is_constant else None for v in node.inputs[1:]]
        starts, axes = numbers[0], numbers[2]
        steps = numbers[3] if len(numbers) > 3 else None
        source_shape = node.arg(0).shape
        if starts is None or axes is None or starts.size != 1 or source_shape is None:
            return None
        if (len(numbers) > 3 and steps is None) or (steps is not None and int(steps[0]) != 1):
            return None
        width, start = source_shape[-1], int(starts[0])
        if int(axes[0]) % rank == rank - 1 and isinstance(width, int):
            return node.arg(0), max(start + width, 0) if start < 0 else min(start, width)
    return None


def merged(build: OpBuilder, heads: Heads) -> Value:
    """Returns heads as an operand of FusedAttention or FusedRotary, adding a Reshape if needed.

    Returns:
        [batch, tokens, columns] with heads side by side; [batch, heads, tokens, head size] if
        `heads.by_head`.
    """
    if heads.source is not None:
        return heads.source
    if heads.by_head:
        return heads.base
    like = Value("", type(heads.base.type)(heads.base.dtype, heads.merged_shape))
    return reshape(build, heads.base, like)

"""FusedAttention: scaled dot-product attention in one kernel, with online softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.cl_code import Define
from clrt.ir.dims import provably_different, provably_equal
from clrt.ir.dtypes import WIDENED_STORAGES, DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.attention_gpu import Attended, emit_gpu
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, launch
from clrt.kernels.strided import broadcast_strides
from clrt.kernels.thresholds import Tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant, reject_but_float32, reject_in_float32
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import agree, broadcast_shapes, need
from clrt.ops.index_checks import check_lengths, length_status
from clrt.ops.movement.common import index_t
from clrt.ops.pointwise.fused import symbolic_shape
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

CPU = tuned(
    "fused_attention_cpu",
    {"T_VW": (4, 8, 16), "T_NQ": (2, 3, 4), "T_MK": (4, 8), "T_MV": (4, 8), "T_KB": (64, 128)},
    T_VW=8,
    T_NQ=Tunable(3, "vectors", "Vectors of queries per work-group, as far as registers permit."),
    T_MK=Tunable(4, "keys", "Keys per register tile, as far as registers permit."),
    T_MV=Tunable(4, "columns", "Columns of V per register tile, as far as registers permit."),
    T_KB=Tunable(64, "keys", "Keys per block, whose scores stay in cache; a multiple of T_MK."),
)
# Maximum elements of a head: kernels hold a row of it in private memory.
MAX_HEAD_SIZE = 512


def _reject_any(node: Node, caps: DeviceCaps) -> str | None:
    op = node.op_as(FusedAttention)
    large = max(op.head_size, op.v_head_size) > MAX_HEAD_SIZE
    return reject_in_float32(node, caps) or (f"head size above {MAX_HEAD_SIZE}" if large else None)


def _reject_cpu(node: Node, caps: DeviceCaps) -> str | None:
    return reject_but_float32(node, caps) or _reject_any(node, caps)


def _mask_kind(op: FusedAttention, mask: Value | None) -> int:
    """Returns the kernel macro MASK: 0 without a mask, 1 if queries share a mask row, else 2."""
    if mask is None:
        return 0
    if op.by_distance:
        return 2
    shape = symbolic_shape(mask)
    return 1 if len(shape) < 2 or provably_equal(shape[-2], 1) else 2


def head_steps(value: Value, size: int, name: str, row: str = "step") -> dict[str, int]:
    """Returns the strides of batch, head and position, in elements, by kernel argument name.

    Args:
        value: Tensor of heads, `[B, S, H * size]` or `[B, H, S, size]`, for B sequences, S
            positions and H heads.
        size: Elements of a head.
        name: Prefix of the argument names: `name`_batch, `name`_head, `name`_`row`.
        row: Suffix of the name of the position stride.
    """
    if len(value.dims) == 4:
        _, heads, length, _ = value.dims
        steps = heads * length * size, length * size, size
    else:
        _, length, width = value.dims
        steps = length * width, size, width
    return {f"{name}_{of}": step for of, step in zip(("batch", "head", row), steps, strict=True)}


def _launch_parts(node: Node) -> tuple[dict[str, Define], dict[str, Any]]:
    """Returns the macros and arguments that all kernels of FusedAttention share."""
    q, k, v, mask, lengths = node.arg(0), node.arg(1), node.arg(2), node.input(3), node.input(4)
    op = node.op_as(FusedAttention)
    batch, queries = node.output.dims[:2]
    keys, heads = k.dims[-2], op.num_heads
    args: dict[str, Any] = {"y": node.output, "scale": op.scale}
    args |= dict(left_window=max(op.left_window, 0), softcap=op.softcap)
    args |= dict(queries=queries, key_count=keys, heads=heads, group=heads // op.kv_num_heads)
    for name, tensor, offset, size in (
        ("q", q, op.q_offset, op.head_size),
        ("k", k, op.k_offset, op.head_size),
        ("v", v, op.v_offset, op.v_head_size),
    ):
        args |= {name: BufferArg(tensor, offset), **head_steps(tensor, size, name)}
    strides = [0] * 4
    if mask is not None and op.by_distance:
        # The mask depends only on the distance of query and key. Each query reads the same row,
        # shifted left by one element from query to query.
        args["mask"] = BufferArg(mask, queries - 1)
        strides = [0, 0 if provably_equal(mask.dims[0], 1) else mask.dims[1], -1, 1]
    elif mask is not None:
        args["mask"] = mask
        strides = list(broadcast_strides(mask.dims, (batch, heads, queries, keys)))
    axes = ("mask_batch", "mask_head", "mask_query", "mask_key")
    args |= zip(axes, strides, strict=True)
    if lengths is not None:
        args |= dict(lengths=lengths, status=length_status(node, 4, keys, "a length"))
    defines: dict[str, Define] = {
        "S_D": op.head_size,
        "S_DV": op.v_head_size,
        "MASK": _mask_kind(op, mask),
        "MASK_BOOL": int(mask is not None and mask.dtype is DType.BOOL),
        "LENGTHS": int(lengths is not None),
        "LENGTH_T": DType.INT64.cl if lengths is None else index_t(lengths),
        "CAUSAL": int(op.is_causal),
        "AT_END": int(op.at_end),
        "WINDOW": int(op.left_window >= 0),
        "SOFTCAP": int(op.softcap > 0),
        "NAN_TO_ZERO": int(op.nan_to_zero or lengths is not None),
    }
    return defines, args


def _flops(node: Node) -> int:
    return node.op_as(FusedAttention).flops(node.input_types, [node.output.type])


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    return [] if 0 in node.output.dims else [launch_cpu(node, ctx, {})]


def query_blocks(node: Node, tunables: Mapping[str, int]) -> tuple[int, int]:
    """Returns the number of query blocks per sequence of the CPU kernel, and that of sequences.

    Args:
        node: FusedAttention node.
        tunables: Tunables of the CPU kernel; a block has T_VW * T_NQ queries.
    """
    batch, queries, _ = node.output.dims
    return ceil_div(queries, tunables["T_VW"] * tunables["T_NQ"]), batch


def launch_cpu(
    node: Node, ctx: Lowering, more_defines: Mapping[str, Define], **more: Any
) -> Launch:
    """Returns the launch of the CPU kernel of a FusedAttention node.

    Args:
        node: FusedAttention node.
        more_defines: Macros to add to those of the node, such as of a fused product.
        more: Kernel arguments to add to those of the node.
    """
    defines, args = _launch_parts(node)
    tunables = ctx.tunables(CPU)
    macros = {**defines, **tunables, **more_defines}
    kernel = KernelSpec.of("attention/fused_attention.cl", "fused_attention_cpu", **macros)
    blocks, batch = query_blocks(node, tunables)
    size = (blocks, node.op_as(FusedAttention).num_heads, batch)
    return launch(kernel, size, (1, 1, 1), _flops(node), **args, **more)


def _with_storage(node: Node) -> tuple[dict[str, Define], dict[str, Any]]:
    """Returns the macros and arguments of the FusedAttention kernels that read 16-bit floats, too.

    Besides those that all kernels share, there are the macros of the dtype of q, k and v.
    """
    defines, args = _launch_parts(node)
    dtype = node.arg(0).dtype
    return {**defines, "DATA_T": dtype.cl, "STORAGE": dtype.storage}, args


def _emit_gpu(node: Node, ctx: Lowering) -> list[Launch]:
    op, y = node.op_as(FusedAttention), node.output
    if 0 in y.dims:
        return []
    defines, args = _with_storage(node)
    del args["y"]
    # The kernel reads a mask by element, whether queries share it or not.
    defines["MASK"] = int(node.input(3) is not None)
    batch, queries, _ = y.dims
    heads = Attended(
        y=y,
        v_size=op.v_head_size,
        batch=batch,
        queries=queries,
        keys=node.arg(1).dims[-2],
        kv_heads=op.kv_num_heads,
        group=op.num_heads // op.kv_num_heads,
        args=args,
        defines=defines,
        flops=_flops(node),
    )
    return emit_gpu(heads, ctx)


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    if 0 in node.output.dims:
        return []
    defines, args = _with_storage(node)
    kernel = KernelSpec.of("attention/fused_attention_any.cl", "fused_attention_any", **defines)
    batch, queries, _ = node.output.dims
    size = (queries, node.op_as(FusedAttention).num_heads, batch)
    return [launch(kernel, size, None, _flops(node), **args)]


@register
@dataclass(frozen=True)
class FusedAttention(Op):
    """Scaled dot-product attention, softmax(scale Q K^T + mask) V for each head.

    Shapes have B sequences, S positions (Sq of queries, Sk of keys), H heads of D elements, and W
    columns. Inputs: q, k and v, each `[B, H, S, D]`, or `[B, S, W]` with the heads as columns; one
    tensor may serve as all three, at different column offsets. Optionally a mask that broadcasts to
    `[B, H, Sq, Sk]`, bool (true keeps) or of q's dtype (added). Optionally lengths, int32 or int64
    `[B]`, the number of keys of each sequence: later rows of k and v are not read, so that k and v
    may be caches with spare capacity. Output: `[B, Sq, num_heads * v_head_size]`.

    Head h of q `[B, S, W]` starts at column `q_offset + h * head_size`; it uses head `h //
    (num_heads // kv_num_heads)` of k and v.

    Attributes:
        num_heads: Number of heads of q.
        kv_num_heads: Number of heads of k and v, a divisor of `num_heads`.
        head_size: Elements of a head of q and k.
        v_head_size: Elements of a head of v.
        q_offset: First column of q in its tensor `[B, S, W]`; 0 for `[B, H, S, D]`.
        k_offset: First column of k in its tensor.
        v_offset: First column of v in its tensor.
        scale: Factor of the scores.
        is_causal: If true, a query at position p sees only the keys 0 to p.
        at_end: If true, query i is at position `keys - Sq + i`, where `keys` is the number of keys
            of its sequence; else at position i.
        left_window: Number of keys before its own position that a query of causal attention sees;
            -1 for no limit.
        softcap: Scores s become `softcap * tanh(s / softcap)` before the mask is added; 0 to
            disable.
        nan_to_zero: If true, a query whose keys are all masked by -inf gives 0 instead of NaN;
            implied by lengths.
        by_distance: If true, the mask is `[num_heads or 1, Sq + Sk - 1]`, and its column `Sq - 1 +
            j - i` applies to query i and key j.

    Numerics: float32 throughout, online softmax (the running maximum of the scores is subtracted).

    Source: clrt; Dao et al., FlashAttention (2022) for the online softmax.
    """

    num_heads: int = 1
    kv_num_heads: int = 1
    head_size: int = 1
    v_head_size: int = 1
    q_offset: int = 0
    k_offset: int = 0
    v_offset: int = 0
    scale: float = 1.0
    is_causal: bool = False
    at_end: bool = False
    left_window: int = -1
    softcap: float = 0.0
    nan_to_zero: bool = False
    by_distance: bool = False

    domain = "clrt"
    accuracy = Accuracy.ACCUMULATED
    supported_storages = WIDENED_STORAGES
    input_traits = InputTraits(index=(4,), same_dtype=((0, 1, 2),))
    variants = (
        Variant("cpu", _emit_cpu, _reject_cpu, requires.CPU),
        Variant("gpu", _emit_gpu, _reject_any, requires.GPU),
        Variant("any", _emit_any, _reject_any, speed=PlainEfficiency),
    )

    def infer(self, inputs: Types) -> list[TensorType]:
        q, k, v = (need(inputs, i, self) for i in range(3))
        sizes = (self.num_heads, self.kv_num_heads, self.head_size, self.v_head_size)
        offsets = (self.q_offset, self.k_offset, self.v_offset)
        if min(sizes) < 1 or min(offsets) < 0 or self.left_window < -1:
            raise ShapeError(f"FusedAttention: the sizes of {self} are not valid.")
        if len({q.dtype, k.dtype, v.dtype}) > 1:
            raise ShapeError(f"FusedAttention: {q}, {k} and {v} must have one dtype.")
        if self.num_heads % self.kv_num_heads:
            raise ShapeError(
                f"FusedAttention: {self.num_heads} heads are not a multiple of "
                f"{self.kv_num_heads} key heads."
            )
        heads = (
            (q, self.num_heads, self.head_size, self.q_offset),
            (k, self.kv_num_heads, self.head_size, self.k_offset),
            (v, self.kv_num_heads, self.v_head_size, self.v_offset),
        )
        for name, (t, count, size, offset) in zip("qkv", heads, strict=True):
            if t.shape is None:
                continue
            if len(t.shape) == 4 and not (
                offset
                or provably_different(t.shape[1], count)
                or provably_different(t.shape[3], size)
            ):
                continue
            width = t.shape[-1] if len(t.shape) == 3 else None
            if width is None or (isinstance(width, int) and width < offset + count * size):
                raise ShapeError(
                    f"FusedAttention: {name} is {t}; it must be [B, S, W] with W at least "
                    f"{offset + count * size}, or [B, {count}, S, {size}]."
                )
        for t in (k, v):
            if t.shape is None or q.shape is None:
                continue
            keys = (k.shape or t.shape)[-2]
            if provably_different(t.shape[0], q.shape[0]) or provably_different(t.shape[-2], keys):
                raise ShapeError(f"FusedAttention: {q}, {k} and {v} have different batch sizes.")
        if q.shape is None:
            return [TensorType(q.dtype, None)]
        shapes = [t.shape for t in (k, v) if t.shape is not None]
        if any(
            provably_different(s[0], q.shape[0]) or provably_different(s[-2], shapes[0][-2])
            for s in shapes
        ):
            raise ShapeError(f"FusedAttention: q {q}, k {k} and v {v} do not match.")
        mask = inputs[3] if len(inputs) > 3 else None
        if mask is not None and mask.dtype not in (DType.BOOL, q.dtype):
            raise ShapeError(f"FusedAttention: the mask {mask} does not match q {q}.")
        if mask is not None and self.by_distance:
            self._check_distances(mask, q, k)
        elif mask is not None and mask.shape is not None and k.shape is not None:
            target = (q.shape[0], self.num_heads, q.shape[-2], k.shape[-2])
            if len(mask.shape) > len(target):
                raise ShapeError(f"FusedAttention: the mask {mask} has more than four axes.")
            broadcast_shapes([mask.shape, target], self)
        lengths = inputs[4] if len(inputs) > 4 else None
        if lengths is not None and not agree(lengths, q.shape[:1]):
            raise ShapeError(f"FusedAttention: lengths {lengths} do not match q {q}.")
        y_shape = (q.shape[0], q.shape[-2], self.num_heads * self.v_head_size)
        return [TensorType(q.dtype, y_shape)]

    def _check_distances(self, mask: TensorType, q: TensorType, k: TensorType) -> None:
        """Checks that a mask with a column per distance of query and key fits q and k.

        Args:
            mask: Type of the mask, expected as `[num_heads or 1, queries + keys - 1]`.
            q: Type of the queries.
            k: Type of the keys.

        Raises:
            ShapeError: The rank, the heads or the number of distances do not fit.
        """
        if mask.shape is None or q.shape is None or k.shape is None:
            return
        count = q.shape[-2] + k.shape[-2] - 1
        heads = (1, self.num_heads)
        wrong = len(mask.shape) != 2 or all(provably_different(mask.shape[0], n) for n in heads)
        if wrong or provably_different(mask.shape[1], count):
            raise ShapeError(f"FusedAttention: {mask} by distance for q {q} and k {k}.")

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        q, k, v, mask, lengths = (*inputs, None, None)[:5]
        assert q is not None and k is not None and v is not None
        queries = heads_apart(q, self.q_offset, self.num_heads, self.head_size)
        keys = heads_apart(k, self.k_offset, self.kv_num_heads, self.head_size)
        values = heads_apart(v, self.v_offset, self.kv_num_heads, self.v_head_size)
        (batch, _, rows, _), capacity = queries.shape, keys.shape[2]
        if mask is not None and self.by_distance:
            mask = mask[:, rows - 1 + np.arange(capacity) - np.arange(rows)[:, None]]
        if mask is not None:
            mask = np.broadcast_to(mask, (batch, self.num_heads, rows, capacity))
        op = self if lengths is None else replace(self, nan_to_zero=True)
        lengths = np.full(batch, capacity) if lengths is None else lengths
        check_lengths(lengths, capacity, self.name, 4, "a length")
        result = np.empty((batch, rows, self.num_heads, self.v_head_size))
        for b, n in enumerate(lengths):
            sequence_mask = None if mask is None else mask[b, ..., :n]
            heads = op._attend(queries[b], keys[b, :, :n], values[b, :, :n], sequence_mask)
            result[b] = heads.swapaxes(0, 1)
        width = self.num_heads * self.v_head_size
        return (result.reshape(batch, rows, width).astype(q.dtype),)

    def _attend(self, q: Array, k: Array, v: Array, mask: Array | None) -> Array:
        """Computes the attention of one sequence by NumPy.

        Args:
            q: Queries `[H, Sq, D]`: heads, queries, elements of a head.
            k: Keys `[key heads, Sk, D]`, for Sk keys.
            v: Values `[key heads, Sk, v_head_size]`.
            mask: Mask that broadcasts to `[H, Sq, Sk]`; None for no mask.

        Returns:
            Output by head, `[H, Sq, v_head_size]`.
        """
        k, v = (np.repeat(x, self.num_heads // self.kv_num_heads, axis=0) for x in (k, v))
        with np.errstate(all="ignore"):
            scores = q @ k.swapaxes(-1, -2) * self.scale
            if self.softcap > 0:
                scores = self.softcap * np.tanh(scores / self.softcap)
            if mask is not None:
                scores = add_mask(scores, mask)
            if self.is_causal:
                rows, count = scores.shape[-2:]
                first = count - rows if self.at_end else 0
                distance = first + np.arange(rows)[:, None] - np.arange(count)
                visible = distance >= 0
                if self.left_window >= 0:
                    visible &= distance <= self.left_window
                scores = np.where(visible, scores, -np.inf)
            weights = softmax(scores)
        if self.nan_to_zero:
            hidden = np.all(np.isneginf(scores), axis=-1, keepdims=True)
            weights = np.where(hidden, 0.0, weights)
        return np.asarray(weights @ v)

    def flops(self, inputs: Types, outputs: Types) -> int:
        q, k = need(inputs, 0, self), need(inputs, 1, self)
        assert q.static_shape is not None and k.static_shape is not None
        pairs = q.static_shape[0] * q.static_shape[-2] * k.static_shape[-2]
        return 2 * pairs * self.num_heads * (self.head_size + self.v_head_size)

    @classmethod
    def plain(cls, heads: int, size: int, **attributes: Any) -> FusedAttention:
        """Creates an op whose q, k and v each have `heads` heads of `size` elements.

        The scale is size^-0.5.

        Args:
            heads: Number of heads.
            size: Elements of a head.
            attributes: Fields of the op; they may override `kv_num_heads`, `v_head_size`, `scale`.
        """
        defaults = {"kv_num_heads": heads, "v_head_size": size, "scale": size**-0.5}
        return cls(heads, head_size=size, **{**defaults, **attributes})


def heads_apart(x: Array, offset: int, count: int, size: int) -> Array:
    """Returns a tensor of heads as float64 `[B, H, S, D]`.

    Args:
        x: `[B, S, W]` with the heads as columns, or `[B, H, S, D]`, for B sequences, S positions
            and W columns.
        offset: Column of the first head in `[B, S, W]`.
        count: Number of heads in `[B, S, W]`, H.
        size: Elements of a head in `[B, S, W]`, D.
    """
    if x.ndim == 4:
        return x.astype(np.float64)
    columns = x[..., offset : offset + count * size].astype(np.float64)
    return columns.reshape(*x.shape[:2], count, size).swapaxes(1, 2)


def add_mask(scores: Array, mask: Array) -> Array:
    """Returns attention scores with a mask applied.

    Some masks hold a large negative number, such as -1e9, in place of -inf. If a finite number of
    the mask is 1e6 or more in magnitude, the sums are rounded to float32, in which models compute
    them. The rounding loses the scores, so that a row in which all keys are masked gets uniform
    softmax weights.

    Args:
        scores: Scores before the softmax.
        mask: Bools (false turns a score into -inf), or numbers to add to the scores.
    """
    if mask.dtype == bool:
        return np.where(mask, scores, -np.inf)
    if np.abs(np.where(np.isinf(mask), 0, mask)).max(initial=0) < 1e6:
        return scores + mask
    return (scores.astype(np.float32) + mask).astype(np.float64)


def softmax(scores: Array) -> Array:
    """Computes the softmax over the last axis; rows of -inf give NaN."""
    if not scores.size:
        return scores
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - top)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))

"""Attention: the forms of ONNX's scaled dot-product attention that have a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dim_operations import floordiv
from clrt.ir.dims import Dim, differ, same
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.attention.fused_attention import MAX_HEAD_SIZE, add_mask, softmax
from clrt.ops.base import Accuracy, Decompose, OnnxNode, Op, Types
from clrt.ops.checks import need
from clrt.ops.registry import register


@register
@dataclass(frozen=True)
class Attention(Op):
    """softmax(scale Q K^T + mask) V by head.

    Inputs: Q, K, V `[B, H, S, D]` or `[B, S, H * D]`, then an optional mask that broadcasts to
    `[B, H, Sq, Sk]`: bool (true keeps) or of Q's dtype (added). Output: Y in Q's form. A row
    without a visible key gives 0.

    Attributes:
        is_causal: Query i sees the keys j <= i.
        scale: 1 / sqrt(D) where None.

    Source: ONNX Attention, opset 23 to 25. What no kernel does (a cache, a softcap, a window, more
    outputs) runs as the function body that ONNX gives.
    """

    is_causal: bool = False
    q_num_heads: int = 0
    kv_num_heads: int = 0
    scale: float | None = None

    accuracy = Accuracy.ACCUMULATED

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        op, attrs = super().from_onnx(node), node.attrs
        assert isinstance(op, cls)
        windows = (attrs.get(f"{side}_window_size", -1) for side in ("left", "right"))
        more = any(node.outputs[1:]) or any(node.inputs[4:])
        if more or attrs.get("softcap", 0) or max(windows) >= 0:
            raise Decompose
        if op.reject_reason([node.types.get(name) for name in node.inputs]) is not None:
            raise Decompose
        return op

    def reject_reason(self, inputs: Types) -> str | None:
        """Why no kernel does it, if so.

        Raises:
            ModelError, ShapeError: An input is left out or has no heads.
        """
        operands = [need(inputs, i, self) for i in range(3)]
        if any(t.dtype is not DType.FLOAT32 or t.shape is None for t in operands):
            return "its operands are not float32 of known rank"
        heads = [self.heads(t, i) for i, t in enumerate(operands)]
        if not all(isinstance(count, int) and isinstance(size, int) for _, count, _, size in heads):
            return "the number or the size of its heads depends on the input"
        if any(size > MAX_HEAD_SIZE for *_, size in heads):
            return f"its heads are wider than {MAX_HEAD_SIZE}"
        mask = inputs[3] if len(inputs) > 3 else None
        if mask is None:
            return None
        if mask.shape is None or not 2 <= len(mask.shape) <= 4:
            return "the mask's rank is not 2 to 4"
        # From opset 24 on a mask of fewer keys hides the others, also where it has one.
        if not same(mask.shape[-1], heads[1][2]):
            return "the mask may be shorter than the keys"
        return None

    def heads(self, t: TensorType, index: int) -> tuple[Dim, Dim, Dim, Dim]:
        """[B, H, S, D] of input `index`, of known rank, in either form.

        Raises:
            ShapeError: It is neither.
        """
        assert t.shape is not None
        if len(t.shape) == 4:
            b, h, s, d = t.shape
            return b, h, s, d
        heads = self.kv_num_heads if index else self.q_num_heads
        if len(t.shape) != 3 or heads < 1:
            raise ShapeError(
                f"Attention: {t} is neither [B, H, S, D] nor [B, S, H * D] with a number of heads."
            )
        batch, length, width = t.shape
        if isinstance(width, int) and width % heads:
            raise ShapeError(f"Attention: {t} does not divide into {heads} heads.")
        return batch, heads, length, floordiv(width, heads)

    def infer(self, inputs: Types) -> list[TensorType]:
        q, k, v = (need(inputs, i, self) for i in range(3))
        if q.shape is None or k.shape is None or v.shape is None:
            return [TensorType(q.dtype, None)]
        batch, heads, queries, size = self.heads(q, 0)
        (_, kv_heads, _, key_size), (*_, value_size) = self.heads(k, 1), self.heads(v, 2)
        if differ(size, key_size):
            raise ShapeError(f"Attention: heads of q have {size} elements, of k {key_size}.")
        if isinstance(heads, int) and isinstance(kv_heads, int) and heads % max(kv_heads, 1):
            raise ShapeError(f"Attention: {heads} heads of q are no multiple of {kv_heads} of k.")
        merged = (batch, queries, heads * value_size)
        by_head = (batch, heads, queries, value_size)
        return [TensorType(q.dtype, merged if len(q.shape) == 3 else by_head)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        q, k, v, mask = inputs + (None,) * (4 - len(inputs))
        assert q is not None and k is not None and v is not None
        queries = _apart(q, self.q_num_heads)
        keys, values = (_apart(x, self.kv_num_heads) for x in (k, v))
        repeat = queries.shape[1] // keys.shape[1]
        keys, values = (np.repeat(x, repeat, axis=1) for x in (keys, values))
        scale = queries.shape[-1] ** -0.5 if self.scale is None else self.scale
        with np.errstate(all="ignore"):
            scores = queries @ keys.swapaxes(-1, -2) * scale
            visible = np.ones(scores.shape, bool)
            if self.is_causal:
                visible = np.tril(visible)
            if mask is not None:
                scores = add_mask(scores, mask)
                visible = visible & (mask if mask.dtype == bool else ~np.isneginf(mask))
            weights = softmax(np.where(visible, scores, -np.inf))
        weights = np.where(visible.any(axis=-1, keepdims=True), weights, 0.0)
        y = weights @ values
        if q.ndim == 3:
            y = y.swapaxes(1, 2).reshape(*q.shape[:2], -1)
        return (y.astype(q.dtype),)


def _apart(x: Array, heads: int) -> Array:
    """float64 [B, H, S, D] of an input in either form."""
    x = x.astype(np.float64)
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

"""Attention: ONNX's scaled dot-product attention with a key and value cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from clrt.errors import ModelError, ShapeError
from clrt.ir.dims import Dim, floordiv
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Expand, OnnxNode, Op, Sample, Types, need, register
from clrt.ops.fused_attention import add_mask, softmax


@register
@dataclass(frozen=True)
class Attention(Op):
    """softmax(softcap(scale Q K^T) + mask) V by head, with the cache put before K and V.

    Inputs: Q, K, V `[B, H, S, D]` or `[B, S, H * D]`, then optional attn_mask, past_key,
    past_value, nonpad_kv_seqlen. Outputs: Y in Q's form, and as many as the node names of
    present_key, present_value, qk_matmul_output. A row without a visible key gives 0.

    Attributes:
        scale: 1 / sqrt(D) where None.
        left_window_size, right_window_size: How far keys may be before and behind; -1: any.
        outputs: How many outputs the node has.

    Source: ONNX Attention, opset 23 to 25.
    """

    is_causal: bool = False
    q_num_heads: int = 0
    kv_num_heads: int = 0
    scale: float | None = None
    softcap: float = 0.0
    qk_matmul_output_mode: int = 0
    left_window_size: int = -1
    right_window_size: int = -1
    outputs: int = 1

    accuracy = Accuracy.ACCUMULATED

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        op = super().from_onnx(node)
        assert isinstance(op, cls)
        windows = max(op.left_window_size, op.right_window_size) >= 0
        floats = all(node.types[n].dtype is DType.FLOAT32 for n in node.inputs[:3] if n)
        # A cache, say, or the scores as a second output: what no kernel of its own does.
        if any(node.outputs[1:]) or any(node.inputs[4:]) or op.softcap or windows or not floats:
            raise Expand
        return op

    def infer(self, inputs: Types) -> list[TensorType]:
        q, k, v = (need(inputs, i, self) for i in range(3))
        past = inputs[4] if len(inputs) > 4 else None
        if (past is None) != (len(inputs) <= 5 or inputs[5] is None):
            raise ModelError("Attention: past_key and past_value must come together.")
        if q.shape is None or k.shape is None or v.shape is None:
            return [TensorType(t.dtype, None) for t in (q, k, v, q)[: self.outputs]]
        (batch, heads, queries, size), wide = self._split(q, self.q_num_heads), len(q.shape) == 3
        _, kv_heads, keys, key_size = self._split(k, self.kv_num_heads)
        _, _, _, value_size = self._split(v, self.kv_num_heads)
        if isinstance(size, int) and isinstance(key_size, int) and size != key_size:
            raise ShapeError(f"Attention: heads of q have {size} elements, of k {key_size}.")
        if past is not None:
            if past.shape is None:
                return [TensorType(t.dtype, None) for t in (q, k, v, q)[: self.outputs]]
            keys = past.shape[2] + keys
        merged = (batch, queries, heads * value_size)
        y = TensorType(q.dtype, merged if wide else (batch, heads, queries, value_size))
        present = (batch, kv_heads, keys)
        others = (
            TensorType(k.dtype, (*present, key_size)),
            TensorType(v.dtype, (*present, value_size)),
            TensorType(q.dtype, (batch, heads, queries, keys)),
        )
        return [y, *others[: self.outputs - 1]]

    def _split(self, t: TensorType, heads: int) -> tuple[Dim, Dim, Dim, Dim]:
        """[B, H, S, D] of an input in either form."""
        assert t.shape is not None
        if len(t.shape) == 4:
            b, h, s, d = t.shape
            return b, h, s, d
        if len(t.shape) != 3 or heads < 1:
            raise ShapeError(
                f"Attention: {t} is neither [B, H, S, D] nor [B, S, H * D] with a number of heads."
            )
        batch, length, width = t.shape
        if isinstance(width, int) and width % heads:
            raise ShapeError(f"Attention: {t} does not divide into {heads} heads.")
        return batch, heads, length, floordiv(width, heads)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        q, k, v, mask, past_key, past_value, lengths = inputs + (None,) * (7 - len(inputs))
        assert q is not None and k is not None and v is not None
        dtype, merged = q.dtype, q.ndim == 3
        q, k, v = (
            _heads(q, self.q_num_heads),
            _heads(k, self.kv_num_heads),
            _heads(v, self.kv_num_heads),
        )
        if past_key is not None and past_value is not None:
            k, v = np.concatenate((past_key, k), axis=2), np.concatenate((past_value, v), axis=2)
        repeat = q.shape[1] // k.shape[1]
        keys, values = (np.repeat(x.astype(np.float64), repeat, axis=1) for x in (k, v))
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        with np.errstate(all="ignore"):
            scores = plain = q.astype(np.float64) @ keys.swapaxes(-1, -2) * scale
            if self.softcap > 0:
                scores = np.tanh(scores / self.softcap) * self.softcap
            capped = scores
            offset = np.asarray(0 if past_key is None else past_key.shape[2])
            visible = self._visible(scores, offset, lengths)
            if mask is not None:
                room = [(0, 0)] * (mask.ndim - 1) + [(0, scores.shape[-1] - mask.shape[-1])]
                hidden: Any = False if mask.dtype == bool else -np.inf
                mask = np.pad(mask, room, constant_values=hidden)
                scores = add_mask(scores, mask)
                visible = visible & (mask if mask.dtype == bool else ~np.isneginf(mask))
            scores = np.where(visible, scores, -np.inf)
            weights = softmax(scores)
        weights = np.where(visible.any(axis=-1, keepdims=True), weights, 0.0)
        stages = (plain, capped, scores, weights)
        y = weights @ values
        if merged:
            y = y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)
        results = (y.astype(dtype), k, v, stages[self.qk_matmul_output_mode].astype(dtype))
        return results[: self.outputs]

    def _visible(self, scores: Array, offset: Array, lengths: Array | None) -> Array:
        """Which keys each query may see, by position alone: broadcasts to the scores."""
        queries, keys = scores.shape[-2:]
        if lengths is not None:
            offset = np.reshape(lengths, (-1, 1, 1, 1)) - queries
        distance = np.arange(queries)[:, None] + offset - np.arange(keys)
        visible = np.ones(np.broadcast_shapes(distance.shape, scores.shape), bool)
        if self.is_causal:
            visible &= distance >= 0
        if self.left_window_size >= 0:
            visible &= distance <= self.left_window_size
        if self.right_window_size >= 0:
            visible &= -distance <= self.right_window_size
        if lengths is not None:
            visible &= np.arange(keys) < np.reshape(lengths, (-1, 1, 1, 1))
        return visible

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(61)
        q, k, v = (
            rng.standard_normal(s).astype(np.float32) for s in [(2, 4, 5, 8), *[(2, 2, 6, 8)] * 2]
        )
        yield Sample(cls(), (q, k, v))
        yield Sample(cls(is_causal=True, softcap=2.0, outputs=4), (q, k, v, None, k, v))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        x = np.zeros((1, 3, 8), np.float32)
        yield Sample(cls(), (x, x, x)), ShapeError
        yield Sample(cls(q_num_heads=3, kv_num_heads=3), (x, x, x)), ShapeError


def _heads(x: Array, heads: int) -> Array:
    """[B, H, S, D] of an input in either form."""
    if x.ndim == 4:
        return x
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

"""Attention: ONNX's scaled dot-product attention, for the cases that FusedAttention supports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dim_operations import floordiv
from clrt.ir.dims import Dim, Shape, provably_different, provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.attention.fused_attention import MAX_HEAD_SIZE, FusedAttention
from clrt.ops.base import Accuracy, Decompose, OnnxNode, Op, Types
from clrt.ops.checks import agree, need
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass

_T = TypeVar("_T")


@register
@dataclass(frozen=True)
class Attention(Op):
    """Scaled dot-product attention, softmax(scale Q K^T + mask) V for each head.

    Shapes have B sequences, H heads, S positions (Sq of queries, Sk of keys, P of the past) and D
    elements of a head. Inputs: Q, K, V `[B, H, S, D]` or `[B, S, H * D]`; optionally a mask that
    broadcasts to `[B, H, Sq, Sk]`, bool (true keeps) or of Q's dtype (added); optionally past keys
    and values `[B, H, P, D]`, prepended to K and V; optionally the number of valid keys of each
    sequence `[B]`, if K and V are caches with spare capacity. Outputs: Y in the layout of Q; with a
    past also all keys and values `[B, H, P + S, D]`. A query without a visible key gives 0.

    Attributes:
        is_causal: If true, a query sees no keys after its position. Query i has position i, or `P +
            i` with a past. With numbers of valid keys, the last query sees the last valid key.
        q_num_heads: Number of heads of Q `[B, S, H * D]`.
        kv_num_heads: Number of heads of K and V `[B, S, H * D]`.
        scale: Factor of the scores; None for 1 / sqrt(D).
        softcap: Scores s become `softcap * tanh(s / softcap)` before the mask is added; 0 to
            disable.
        left_window_size: Number of keys before its own position that a query of causal attention
            sees; -1 for all.

    Source: ONNX Attention, opset 23 to 25. Cases without a kernel (a window to the right, scores as
    an output) run as ONNX's function body.
    """

    is_causal: bool = False
    q_num_heads: int = 0
    kv_num_heads: int = 0
    scale: float | None = None
    softcap: float = 0.0
    left_window_size: int = -1

    accuracy = Accuracy.ACCUMULATED
    input_traits = InputTraits(index=(6,), same_dtype=((0, 1, 2), (4, 5)))

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        op, attrs = super().from_onnx(node), node.attrs
        assert isinstance(op, cls)
        pasts = [any(node.inputs[i : i + 1]) for i in (4, 5)]
        presents, scores = any(node.outputs[1:3]), any(node.outputs[3:])
        if scores or pasts[0] != pasts[1] or presents > pasts[0]:
            raise Decompose
        if max(op.left_window_size, attrs.get("right_window_size", -1)) >= 0 and not op.is_causal:
            raise Decompose
        if op.reject_reason([node.types.get(name) for name in node.inputs]) is not None:
            raise Decompose
        return op

    def reject_reason(self, inputs: Types) -> str | None:
        """Returns why FusedAttention does not support this op's inputs; None if it does.

        Args:
            inputs: Types of the node's inputs.

        Raises:
            ModelError: Q, K or V is omitted.
            ShapeError: Q, K or V cannot be split into heads.
        """
        operands = [need(inputs, i, self) for i in range(3)]
        mask, past, _, lengths = self._optional(inputs)
        tensors = [*operands, *(t for t in inputs[4:6] if t is not None)]
        if any(t.dtype is not DType.FLOAT32 or t.shape is None for t in tensors):
            return "its operands are not float32 of known rank"
        heads = [self.heads(t, i) for i, t in enumerate(operands)]
        if not all(isinstance(count, int) and isinstance(size, int) for _, count, _, size in heads):
            return "the number or the size of its heads depends on the input"
        if any(size > MAX_HEAD_SIZE for *_, size in heads):
            return f"its heads are wider than {MAX_HEAD_SIZE}"
        if past is not None and lengths is not None:
            return "it has a past and lengths"
        if past is not None and self.is_causal and not provably_equal(heads[0][2], heads[1][2]):
            return "its past may not end where the queries start"
        if mask is None:
            return None
        if mask.shape is None or not 2 <= len(mask.shape) <= 4:
            return "the mask's rank is not 2 to 4"
        # Since opset 24 a mask with fewer columns than keys, even with one, hides the other keys.
        if not provably_equal(mask.shape[-1], self._keys(heads[1][2], past)):
            return "the mask may be shorter than the keys"
        return None

    @staticmethod
    def _optional(inputs: Sequence[_T | None]) -> Sequence[_T | None]:
        """Returns inputs 3 to 6: mask, past keys, past values, lengths; None for an omitted one."""
        return (*inputs[3:], *[None] * 4)[:4]

    @staticmethod
    def _keys(new: Dim, past: TensorType | None) -> Dim:
        """Returns the number of keys: `new` plus those of `past` (its axis 2; None for no past)."""
        return new if past is None or past.shape is None else new + past.shape[2]

    def fused(self, parts: Sequence[Shape], has_past: bool, has_lengths: bool) -> FusedAttention:
        """Returns the FusedAttention that computes the same as this op.

        Args:
            parts: Shapes of Q, K and V: sequences, heads, positions, elements of a head.
            has_past: Whether the node has past keys and values.
            has_lengths: Whether the node has an input with the number of valid keys of each
                sequence.
        """
        (_, heads, _, size), (_, kv_heads, _, _), (*_, v_size) = parts
        assert isinstance(size, int)
        return FusedAttention(
            num_heads=int(heads),
            kv_num_heads=int(kv_heads),
            head_size=size,
            v_head_size=int(v_size),
            scale=size**-0.5 if self.scale is None else self.scale,
            is_causal=bool(self.is_causal),
            at_end=self.is_causal and (has_past or has_lengths),
            left_window=self.left_window_size if self.is_causal else -1,
            softcap=self.softcap,
            nan_to_zero=True,
        )

    def heads(self, t: TensorType, index: int) -> tuple[Dim, Dim, Dim, Dim]:
        """Returns the shape of Q, K or V with separate axes for heads and positions.

        Args:
            t: Type of the input, with a known rank.
            index: Index of the input: 0 for Q, 1 for K, 2 for V.

        Returns:
            Sequences B, heads H, positions S, elements of a head D.

        Raises:
            ShapeError: The input is neither `[B, H, S, D]` nor `[B, S, H * D]`.
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
        if provably_different(size, key_size):
            raise ShapeError(f"Attention: heads of q have {size} elements, of k {key_size}.")
        if isinstance(heads, int) and isinstance(kv_heads, int) and heads % max(kv_heads, 1):
            raise ShapeError(
                f"Attention: {heads} heads of q are not a multiple of {kv_heads} of k."
            )
        y: Shape = (batch, heads, queries, value_size)
        if len(q.shape) == 3:
            y = (batch, queries, heads * value_size)
        results = [TensorType(q.dtype, y)]
        pasts = self._optional(inputs)[1:3]
        for t, past, parts in zip((k, v), pasts, (self.heads(k, 1), self.heads(v, 2)), strict=True):
            if past is None:
                continue
            b, h, s, d = parts
            if past.shape is None:
                results.append(TensorType(t.dtype, None))
                continue
            if past.dtype is not t.dtype or not agree(past, (b, h, None, d)):
                raise ShapeError(f"Attention: a past {past} of {t}.")
            results.append(TensorType(t.dtype, (b, h, past.shape[2] + s, d)))
        return results

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        q, k, v = inputs[:3]
        assert q is not None and k is not None and v is not None
        mask, *pasts, lengths = self._optional(inputs)
        queries, *news = (
            _apart(x, self.heads(TensorType.of(x), i)) for i, x in enumerate((q, k, v))
        )
        presents = [
            new if past is None else np.concatenate([past, new], axis=2)
            for past, new in zip(pasts, news, strict=True)
        ]
        shapes = [x.shape for x in (queries, *presents)]
        op = self.fused(shapes, pasts[0] is not None, lengths is not None)
        (y,) = op.reference(queries, *presents, mask, lengths)
        if q.ndim == 4:
            y = y.reshape(*y.shape[:2], op.num_heads, op.v_head_size).swapaxes(1, 2)
        return (y, *(presents if pasts[0] is not None else ()))


def _apart(x: Array, parts: Shape) -> Array:
    """Reshapes Q, K or V to `[B, H, S, D]` by NumPy.

    Args:
        x: Input, `[B, H, S, D]` or `[B, S, H * D]`.
        parts: Shape of the result: sequences B, heads H, positions S, elements of a head D.
    """
    batch, heads, length, size = parts
    return x if x.ndim == 4 else x.reshape(batch, length, heads, size).swapaxes(1, 2)

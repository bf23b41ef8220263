"""PagedAttention: causal attention of tokens of several sequences over a cache in pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clrt.device import requires
from clrt.errors import ShapeError
from clrt.ir.code import Define
from clrt.ir.dims import differ
from clrt.ir.dtypes import WIDENED_STORAGES, DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.cost import PLAIN
from clrt.kernels.spec import KernelSpec, Launch, ceil_div, clamp, launch, optional
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.attention.pages import SLABS, PagedOp, is_matrix, visible
from clrt.ops.base import Accuracy, Types
from clrt.ops.checks import need
from clrt.ops.registry import register

CPU = tuned(
    "paged_attention_cpu",
    {"T_VW": (4, 8, 16), "T_MR": (2, 4, 6), "T_NK": (1, 2), "T_ROWS": (16, 32, 64)},
    T_VW=8,
    T_MR=4,
    T_NK=2,
    T_ROWS=32,
    T_PAGES=4,
)
_GROUPS_PER_UNIT = 8


def _launch_parts(node: Node) -> tuple[dict[str, Define], dict[str, Any]]:
    """Defines and arguments that both kernels share."""
    op, slopes, sinks, biases = node.op, *(node.input(i) for i in (3, 4, 5))
    assert isinstance(op, PagedAttention)
    args = {"y": node.output, "q": node.arg(0), **optional(slopes=slopes, sinks=sinks)}
    if biases is not None:
        args |= {"biases": biases, "distances": biases.dims[1]}
    args |= op.arguments(node, 1, node.inputs[op.first_slab :])
    args |= dict(scale=op.scale, left_window=max(op.left_window, 0), softcap=op.softcap)
    defines = {
        **op.defines(node),
        "WINDOW": int(op.left_window >= 0),
        "SOFTCAP": int(op.softcap > 0),
        "ALIBI": int(slopes is not None),
        "SINKS": int(sinks is not None),
        "BIASES": int(biases is not None),
    }
    return defines, args


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    op, tokens = node.op, node.output.dims[0]
    assert isinstance(op, PagedAttention)
    if not tokens:
        return []
    tunables = ctx.tunables(CPU)
    lanes = min(tunables["T_VW"], op.head_size & -op.head_size)
    most = 4 if lanes == 16 else 2
    vectors = max(n for n in range(1, most + 1) if op.head_size // lanes % n == 0 and n != 3)
    defines, args = _launch_parts(node)
    macros = {**defines, **tunables, "T_VW": lanes, "S_NV": vectors}
    kernel = KernelSpec.of("attention/paged_attention.cl", "paged_attention_cpu", **macros)
    # A work-group has queries of several tokens where there are enough for all cores.
    pieces = tokens * op.kv_num_heads // (_GROUPS_PER_UNIT * ctx.caps.compute_units)
    group = op.num_heads // op.kv_num_heads
    span = clamp(pieces, 1, max(tunables["T_ROWS"] // group, 1))
    size = (op.kv_num_heads, ceil_div(tokens, span))
    return [launch(kernel, size, (1, 1), **args, span=span)]


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    op, tokens = node.op, node.output.dims[0]
    assert isinstance(op, PagedAttention)
    defines, args = _launch_parts(node)
    macros = {**defines, "T_VW": 1}
    kernel = KernelSpec.of("attention/paged_attention.cl", "paged_attention_any", **macros)
    return [launch(kernel, (op.num_heads, tokens), None, **args)] if tokens else []


@register
@dataclass(frozen=True)
class PagedAttention(PagedOp):
    """softmax(scale Q K^T) V by head, causal: a token sees its sequence up to its own place.

    Inputs: Q `[T, num_heads * head_size]`; step; table; slopes `[num_heads]`, times which the
    distance of a key is taken off its score; sinks `[num_heads]`, the score of a key without a
    value; biases `[num_heads, distances]`, what is added to the score of a key at each distance,
    the last one for all that are farther; the slabs, with keys and values of these tokens. Slopes,
    sinks and biases may be left out. Output: like Q; 0 for a token of no sequence.

    Attributes:
        left_window: No keys before `place - left_window` are seen; -1 for no limit.
        softcap: Scores s are `softcap * tanh(s / softcap)`; 0 for none.

    Numerics: float32, whatever the cache holds, online softmax.
    Source: clrt; Kwon et al., PagedAttention (2023); Press et al., ALiBi (2021); Raffel et al., T5
    (2019) for biases.
    """

    scale: float = 1.0
    left_window: int = -1
    softcap: float = 0.0

    domain = "clrt"
    accuracy = Accuracy.ACCUMULATED
    storages = WIDENED_STORAGES
    narrow_inputs = tuple(range(6, 6 + SLABS))
    variants = (
        Variant("cpu", _emit_cpu, requires=requires.CPU),
        Variant("any", _emit_any, speed=PLAIN),
    )

    @property
    def first_slab(self) -> int:
        return 6

    def infer(self, inputs: Types) -> list[TensorType]:
        q, step = need(inputs, 0, self), need(inputs, 1, self)
        self.check_cache(inputs)
        self.check_rows(q, self.num_heads * self.head_size, step)
        self.check_vector(inputs, 3, self.num_heads)
        self.check_vector(inputs, 4, self.num_heads)
        if (biases := inputs[5]) is not None:
            wrong = biases.dtype is not DType.FLOAT32 or not is_matrix(biases, None)
            if not wrong and biases.shape is not None:
                rows, distances = biases.shape
                wrong = differ(rows, self.num_heads) or (
                    isinstance(distances, int) and distances == 0
                )
            if wrong:
                raise ShapeError(
                    f"{self.name}: input 5 is {biases}; expected float32 [{self.num_heads}, n]."
                )
        return [TensorType(q.dtype, q.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        q, step, table, slopes, sinks, biases = inputs[: self.first_slab]
        assert q is not None and step is not None and table is not None
        slabs = [s for s in inputs[self.first_slab :] if s is not None]
        heads = q.reshape(len(q), self.num_heads, self.head_size).astype(np.float64)
        y = np.zeros(heads.shape)
        for token, query in enumerate(heads):
            found = self.place(step, table, token)
            if found is None:
                continue
            row, place = found
            first = max(place - self.left_window, 0) if self.left_window >= 0 else 0
            keys, values = visible(self, slabs, row, range(first, place + 1))
            group = self.num_heads // self.kv_num_heads
            keys, values = (np.repeat(x, group, axis=0) for x in (keys, values))
            scores = np.einsum("hd,hnd->hn", query, keys) * self.scale
            if self.softcap > 0:
                scores = self.softcap * np.tanh(scores / self.softcap)
            if slopes is not None:
                distances = np.arange(first, place + 1) - place
                scores = scores + slopes.astype(np.float64)[:, None] * distances
            if biases is not None:
                behind = np.minimum(place - np.arange(first, place + 1), biases.shape[1] - 1)
                scores = scores + biases.astype(np.float64)[:, behind]
            top = scores.max(axis=1, keepdims=True)
            if sinks is not None:
                top = np.maximum(top, sinks[:, None])
            weights = np.exp(scores - top)
            total = weights.sum(axis=1, keepdims=True)
            if sinks is not None:
                total = total + np.exp(sinks[:, None] - top)
            y[token] = np.einsum("hn,hnd->hd", weights / total, values)
        return (y.reshape(q.shape).astype(q.dtype),)

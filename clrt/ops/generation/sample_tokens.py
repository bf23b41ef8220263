"""SampleTokens: the next token of each sequence, drawn from logits on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.device.requires import Requires
from clrt.errors import NumberError, ShapeError
from clrt.ir.cl_code import Define
from clrt.ir.dims import Dim
from clrt.ir.dtypes import FLOAT_STORAGES, WIDENED_STORAGES, DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.cost import PLAIN
from clrt.kernels.spec import (
    BufferArg,
    KernelSpec,
    Launch,
    Scratch,
    StatusWord,
    chunks_per_group,
    launch,
    optional,
)
from clrt.kernels.sub_group import sub_group_of
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import agree, need
from clrt.ops.generation.sampling import draw_row
from clrt.ops.movement.common import fresh_dim
from clrt.ops.pointwise.fused import symbolic_shape
from clrt.ops.registry import register
from clrt.util.math import ceil_div, round_up

# Buckets of the histogram, which also holds the chunks, and the tokens of a chunk.
_BUCKETS, _FEW_BUCKETS, _DIGITS = 1024, 512, 256
_MOST_TOKENS = _BUCKETS**2
DRAW = tuned("sample_draw", {"T_VW": (4, 8, 16)}, T_VW=8, T_CHUNK=1024, T_LIST=1024, T_ITEMS=128)
_SOURCE = "generation/sample_tokens.cl"
_LANES = 16  # chunks are whole vectors of any width
_MOST_CHUNKS = 8  # of a work-group of a CPU
_PARTS = 3
_FORMS = "F_ALLOWED", "F_BIAS"
_WHAT = "the row, from 1, that leaves no token"
_RULE = "each needs one whose logit is above -inf after bias and mask"


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    return f"for at most {_MOST_TOKENS} tokens" if node.arg(0).dims[1] > _MOST_TOKENS else None


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    """The scores of all chunks, and a draw for each row, by one work-item each."""
    if not node.arg(0).dims[0]:
        return []
    of = _TokenRows.of(node, ctx, {**ctx.tunables(DRAW), "T_ITEMS": 1})
    rows, per = of.rows, chunks_per_group(of.rows * of.chunks, _MOST_CHUNKS, ctx.caps)
    found = dict(best=ctx.scratch(rows, DType.INT32), whole=ctx.scratch(rows))
    counts = ctx.scratch(of.scores.elems, DType.INT32)
    size, flops = (1, rows), 8 * rows * of.n
    return [
        launch(
            of.spread("sample_scores"), (ceil_div(of.chunks, per), rows), (1, 1), flops,
            counts=counts, per=per, **of.given, **of.shared,
        ),
        launch(of.kernel("sample_best"), size, (1, 1), status=of.status, **found, **of.shared),
        launch(of.kernel("sample_draw"), size, (1, 1), flops, **of.drawn, **found, **of.shared),
    ]  # fmt: skip


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    """A work-group for each chunk, whose work-items take a token at a time, and then for each row.

    Half the buckets fit in the local memory of any device.
    """
    found, tokens = ctx.tunables(DRAW), symbolic_shape(node.arg(0))[1]
    few = isinstance(tokens, int) and tokens <= _FEW_BUCKETS**2
    buckets = _FEW_BUCKETS if few else _BUCKETS
    chunk = min(found["T_CHUNK"] // 16, buckets)
    found |= {"T_VW": 1, "T_CHUNK": chunk, "T_LIST": ceil_div(found["T_LIST"], 4)}
    items, listed = found["T_ITEMS"], found["T_LIST"]
    room = 16 * items + 12 * (buckets + _DIGITS + listed + 1) + 2 * buckets + 56
    ctx.require(Requires(work_group_size=items, local_mem_bytes=room))
    if not node.arg(0).dims[0]:
        return []
    of = _TokenRows.of(node, ctx, {**found, "T_BUCKETS": buckets}, **sub_group_of(ctx.caps))
    rows, local, flops = of.rows, (items, 1), 8 * of.rows * of.n
    each = (of.chunks * items, rows)
    result = dict(best=ctx.scratch(rows, DType.INT32), whole=ctx.scratch(rows))
    histogram = dict(histogram=ctx.scratch(2 * rows * buckets, DType.UINT32))
    result |= histogram | dict(weights=ctx.scratch(rows * of.chunks, DType.UINT64))
    asked = dict(settings=node.arg(1), limits=node.arg(2))
    # A draw reads one chunk of a row, or those that hold a token which cut-offs leave; and a logit.
    drawn = of.shared | {"scores": BufferArg(of.scores, elems=rows * of.chunk)}
    drawn |= of.drawn | {"logits": BufferArg(node.arg(0), elems=rows)}
    return [
        launch(
            of.spread("sample_scores_group"), each, local, flops,
            **histogram, **of.given, **of.shared,
        ),
        launch(
            of.kernel("sample_best_group"), each, local, flops,
            status=of.status, **asked, **result, **of.shared,
        ),
        launch(
            of.kernel("sample_draw"), (items, rows), local, 8 * rows * of.chunk, **result, **drawn
        ),
    ]  # fmt: skip


@dataclass(frozen=True)
class _TokenRows:
    """A node as rows of n tokens, in chunks, with what its kernels take.

    Attributes:
        chunk, chunks: Tokens of one, and how many a row has.
        defines: Macros of all kernels.
        shared: Arguments of all kernels.
    """

    node: Node
    rows: int
    n: int
    chunk: int
    chunks: int
    defines: dict[str, Define]
    shared: dict[str, Any]

    @classmethod
    def of(cls, node: Node, ctx: Lowering, tunables: dict[str, int], **more: Define) -> _TokenRows:
        """The rows of a node.

        Raises:
            ShapeError: There are no tokens to draw from, or too many.
        """
        logits = node.arg(0)
        rows, n = logits.dims
        if not n:
            where = f"SampleTokens '{node.name}'"
            raise ShapeError(f"{where}: {logits.type} has no tokens to draw from.")
        least = round_up(ceil_div(n, tunables.get("T_BUCKETS", _BUCKETS)), _LANES)
        chunk = clamp(tunables.pop("T_CHUNK"), max(least, _LANES), round_up(n, _LANES))
        chunks = ceil_div(n, chunk)
        scores = ctx.scratch(rows * chunks * chunk)
        parts = ctx.scratch(rows * chunks * _PARTS)
        shared = dict(scores=scores, parts=parts, n=n, chunk=chunk, chunks=chunks)
        more |= {"DATA_T": logits.dtype.cl, "STORAGE": logits.dtype.storage}
        return cls(node, rows, n, chunk, chunks, {**more, **tunables}, shared)

    @property
    def scores(self) -> Scratch:
        """Of all chunks."""
        scores: Scratch = self.shared["scores"]
        return scores

    @property
    def status(self) -> StatusWord:
        """For a row that leaves no token."""
        return StatusWord(self.node, 0, _WHAT, (), rule=_RULE)

    def kernel(self, entry: str, **more: Define) -> KernelSpec:
        """One of the kernels."""
        return KernelSpec.of(_SOURCE, entry, **self.defines, **more)

    def spread(self, entry: str) -> KernelSpec:
        """The one that makes the scores."""
        given = self.node.input(5), self.node.input(6)
        forms = (int(x is not None) for x in given)
        return self.kernel(entry, **dict(zip(_FORMS, forms, strict=True)))

    @property
    def given(self) -> dict[str, Any]:
        """What that one takes besides."""
        allowed, bias_ids, bias_values = (self.node.input(i) for i in range(5, 8))
        logits, settings, limits, history = (self.node.arg(i) for i in range(4))
        return dict(
            logits=logits, settings=settings, limits=limits, history=history,
            most=history.dims[1], words=ceil_div(self.n, 32),
            biases=0 if bias_ids is None else bias_ids.dims[1],
            **optional(allowed=allowed, bias_ids=bias_ids, bias_values=bias_values),
        )  # fmt: skip

    @property
    def drawn(self) -> dict[str, Any]:
        """What the one that draws takes besides."""
        names = "logits", "settings", "limits"
        made = dict(zip(names, (self.node.arg(i) for i in range(3)), strict=True))
        token, logprob = self.node.outputs
        return dict(draw=self.node.arg(4), token=token, logprob=logprob, **made)


@register
@dataclass(frozen=True)
class SampleTokens(Op):
    """int32 `[B]`, a token for each row of logits, and float32 `[B]`, its log-probability.

    The log-probability is that of the logits as they are. NaN counts as -inf, inf as the largest
    float. What a request chooses is a tensor, so that one plan serves all.

    Inputs:
        logits: `[B, V]`, float32, float16 or bfloat16.
        settings: float32 `[B, 8]`: temperature (0: the best token), top_p, min_p, typical_p,
            repetition, presence and frequency penalty, and how many tokens the history begins with
            for which the last two do not count. top_p of 1 and more, min_p of 0 and less, typical_p
            and a repetition penalty outside (0, 1) and (0, inf) do nothing.
        limits: int32 `[B, 4]`: top_k (0: all), tokens of the history, seed (low and high bits).
        history: int32 `[B, H]`: tokens so far; others than 0..V-1 count for nothing.
        draw: int32 `[B]`: which number of the seed's sequence decides.
        allowed: uint32 `[B, ceil(V / 32)]`, optional: bit v % 32 of word v // 32 allows token v.
        bias_ids, bias_values: int32 and float32 `[B, N]`, optional: added to the logits; ids
            outside 0..V-1 are passed over.

    Order: bias and mask, repetition penalty, presence and frequency penalties, temperature, top_k,
    top_p, min_p, typical_p. What is kept is drawn by its running sum, in the order of the tokens.

    Numerics: scores are float32, weights 40 bits behind the point; on the edge between two tokens
    devices may differ.

    Source: clrt. The order and meaning of transformers' processors, and OpenAI's penalties.
    """

    domain = "clrt"
    accuracy = Accuracy.ACCUMULATED
    supported_storages = WIDENED_STORAGES
    variants = (
        Variant("cpu", _emit_cpu, _reject, requires.CPU),
        Variant("groups", _emit, _reject, speed=PLAIN),
    )

    def infer(self, inputs: Types) -> list[TensorType]:
        logits = need(inputs, 0, self)
        if logits.dtype not in FLOAT_STORAGES or not agree(logits, (None, None)):
            raise ShapeError(f"SampleTokens: {logits} are no logits; expected floats [B, V].")
        batch, tokens = logits.shape or (fresh_dim(), fresh_dim())
        words = ceil_div(tokens, 32) if isinstance(tokens, int) else None
        self._check(inputs, batch, words)
        return [TensorType(DType.INT32, (batch,)), TensorType(DType.FLOAT32, (batch,))]

    def _check(self, inputs: Types, batch: Dim, words: int | None) -> None:
        given = [*inputs, None, None, None][:8]
        sized = given[6].shape if given[6] is not None else None
        biases = sized[1] if sized is not None and len(sized) == 2 else None
        expected: list[tuple[str, DType, tuple[Dim | None, ...]]] = [
            ("settings", DType.FLOAT32, (batch, 8)),
            ("limits", DType.INT32, (batch, 4)),
            ("history", DType.INT32, (batch, None)),
            ("draw", DType.INT32, (batch,)),
            ("allowed", DType.UINT32, (batch, words)),
            ("bias_ids", DType.INT32, (batch, None)),
            ("bias_values", DType.FLOAT32, (batch, biases)),
        ]
        for index, (name, dtype, shape) in enumerate(expected, start=1):
            found = need(inputs, index, self) if index < 5 else given[index]
            if found is not None and (found.dtype is not dtype or not agree(found, shape)):
                text = ",".join("?" if d is None else str(d) for d in shape)
                raise ShapeError(f"SampleTokens: {name} is {found}; expected {dtype}[{text}].")
        if (given[6] is None) != (given[7] is None):
            raise ShapeError("SampleTokens: bias_ids and bias_values go together.")

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        given = [*inputs, None, None, None][:8]
        assert given[0] is not None
        rows = range(len(given[0]))
        found = [draw_row(*(None if x is None else x[row] for x in given)) for row in rows]
        for row, pair in enumerate(found, start=1):
            if pair is None:
                raise NumberError(self.name, 0, _WHAT, row, _RULE)
        tokens, logprobs = zip(*filter(None, found), strict=True) if found else ((), ())
        return np.array(tokens, np.int32), np.array(logprobs, np.float32)

"""SampleTokens: the next token of each sequence, drawn from logits on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.device.requires import Requires
from clrt.errors import NumberError, ShapeError
from clrt.ir.code import Define
from clrt.ir.dims import Dim
from clrt.ir.dtypes import WIDENED, WIDENED_STORAGES, DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.cost import PLAIN
from clrt.kernels.spec import (
    KernelSpec,
    Launch,
    Status,
    ceil_div,
    clamp,
    i32,
    launch,
    optional,
    pieces_per_group,
    round_up,
)
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import agree, need
from clrt.ops.generation.sampling import draw_row
from clrt.ops.movement.movement import fresh_dim
from clrt.ops.pointwise.fused import symbolic_shape
from clrt.ops.registry import register

# Buckets of the histogram, which also holds the chunks, and the tokens of a chunk.
_BUCKETS, _FEW_BUCKETS, _DIGITS = 1024, 512, 256
_MOST_TOKENS = _BUCKETS**2
DRAW = tuned("sample_draw", {"T_VW": (4, 8, 16)}, T_VW=8, T_CHUNK=1024, T_LIST=1024, T_ITEMS=128)
_SOURCE = "generation/sample_tokens.cl"
_LANES = 16  # chunks are whole vectors of any width
_MOST_CHUNKS = 8  # of a work-group of a CPU
_PARTS = 3
_WHAT = "the row, from 1, that leaves no token"
_RULE = "each needs one whose logit is above -inf after bias and mask"


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    return f"for at most {_MOST_TOKENS} tokens" if node.arg(0).dims[1] > _MOST_TOKENS else None


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    return _launches(node, ctx, {**ctx.tunables(DRAW), "T_ITEMS": 1})


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    """Work-items take a token at a time, and few, so that there are enough for all.

    Half the buckets fit in the local memory of any device.
    """
    found, tokens = ctx.tunables(DRAW), symbolic_shape(node.arg(0))[1]
    few = isinstance(tokens, int) and tokens <= _FEW_BUCKETS**2
    buckets = _FEW_BUCKETS if few else _BUCKETS
    found |= {"T_VW": 1, "T_CHUNK": found["T_CHUNK"] // 16, "T_LIST": ceil_div(found["T_LIST"], 4)}
    items, listed = found["T_ITEMS"], found["T_LIST"]
    room = 16 * items + 12 * (buckets + _DIGITS + listed + 1) + 48
    ctx.require(Requires(work_group_size=items, local_mem_bytes=room))
    return _launches(node, ctx, {**found, "T_BUCKETS": buckets})


def _launches(node: Node, ctx: Lowering, tunables: dict[str, int]) -> list[Launch]:
    """The scores of all chunks, and a draw for each row."""
    logits, settings, limits, history, draw = (node.arg(i) for i in range(5))
    rows, n = logits.dims
    if not rows:
        return []
    if not n:
        raise ShapeError(f"SampleTokens '{node.name}': {logits.type} has no tokens to draw from.")
    allowed, bias_ids, bias_values = (node.input(i) for i in range(5, 8))
    items = tunables["T_ITEMS"]
    least = round_up(ceil_div(n, tunables.get("T_BUCKETS", _BUCKETS)), _LANES)
    chunk = clamp(tunables.pop("T_CHUNK"), max(least, _LANES), round_up(n, _LANES))
    chunks = ceil_div(n, chunk)
    i32(rows * chunks * chunk)
    per = pieces_per_group(rows * chunks, _MOST_CHUNKS, ctx.caps) if items == 1 else 1
    defines: dict[str, Define] = dict(
        DATA_T=logits.dtype.cl, STORAGE=logits.dtype.storage, **tunables
    )
    spread = KernelSpec.of(
        _SOURCE,
        "sample_scores",
        F_ALLOWED=int(allowed is not None),
        F_BIAS=int(bias_ids is not None),
        **defines,
    )
    choose, draws = (KernelSpec.of(_SOURCE, f"sample_{k}", **defines) for k in ("best", "draw"))
    scores = ctx.scratch(rows * chunks * chunk)
    counts = ctx.scratch(rows * chunks * chunk, DType.INT32)
    parts = ctx.scratch(rows * chunks * _PARTS)
    found = dict(best=ctx.scratch(rows, DType.INT32), whole=ctx.scratch(rows))
    given = optional(allowed=allowed, bias_ids=bias_ids, bias_values=bias_values)
    token, logprob = node.outputs
    inputs = dict(logits=logits, settings=settings, limits=limits)
    shared = dict(scores=scores, parts=parts, n=n, chunk=chunk, chunks=chunks)
    size, local, flops = (items, rows), (items, 1), 8 * rows * n
    return [
        launch(
            spread, (round_up(ceil_div(chunks, per), items), rows), local, flops,
            history=history, counts=counts, per=per, most=history.dims[1], words=ceil_div(n, 32),
            biases=0 if bias_ids is None else bias_ids.dims[1], **inputs, **shared, **given,
        ),
        launch(
            choose, size, local, status=Status(node, 0, _WHAT, (), rule=_RULE), **found, **shared,
        ),
        launch(
            draws, size, local, flops, draw=draw, token=token, logprob=logprob, **inputs, **found,
            **shared,
        ),
    ]  # fmt: skip


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
    storages = WIDENED_STORAGES
    variants = (
        Variant("cpu", _emit_cpu, _reject, requires.CPU),
        Variant("groups", _emit, _reject, speed=PLAIN),
    )

    def infer(self, inputs: Types) -> list[TensorType]:
        logits = need(inputs, 0, self)
        if logits.dtype not in WIDENED or not agree(logits, (None, None)):
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

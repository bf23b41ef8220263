"""SampleTokens: samples the next token of each sequence from logits, on the device."""

from __future__ import annotations

from typing import Any, ClassVar

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
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import (
    BufferArg,
    KernelSpec,
    Launch,
    Scratch,
    StatusWord,
    launch,
    optional,
)
from clrt.kernels.sub_group import sub_group_of
from clrt.kernels.thresholds import Thresholds, Tunable, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import agree, need
from clrt.ops.generation.sampling import draw_row
from clrt.ops.movement.common import fresh_dim
from clrt.ops.pointwise.fused import symbolic_shape
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up

# Number of histogram buckets, which also limits the chunks per row and the tokens per chunk. Few
# buckets suffice for small vocabularies; _DIGITS: values of a digit of 8 bits.
_BUCKETS, _FEW_BUCKETS, _DIGITS = 1024, 512, 256
_MAX_TOKENS = _BUCKETS**2
DRAW = tuned(
    "sample_draw",
    {"T_VW": (4, 8, 16)},
    T_VW=8,
    T_CHUNK=Tunable(1024, "tokens", "Minimum per chunk, each of which has a work-group."),
    T_LIST=Tunable(1024, "tokens", "Tokens of a bucket listed in local memory; more are reread."),
    T_ITEMS=128,
)
_SOURCE = "generation/sample_tokens.cl"
_LANES = 16  # chunk sizes are multiples of the widest vector
_PARTS = 3  # floats per chunk: highest score, highest logit, sum of exponentials
_FORMS = "F_ALLOWED", "F_BIAS"
_WHAT = "the row, from 1, that leaves no token"
_RULE = "each needs one whose logit is above -inf after bias and mask"


class SamplePartition(Thresholds):
    """Threshold of the partition of SampleTokens into CPU work-groups."""

    chunks: int = tunable(
        8, "chunks of T_CHUNK tokens", "Maximum per work-group, to amortize its start."
    )

    group: ClassVar = "sample_shares"


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    return f"for at most {_MAX_TOKENS} tokens" if node.arg(0).dims[1] > _MAX_TOKENS else None


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    """Returns the launches for CPUs, one after another: scores, best tokens, drawn tokens.

    The first launch scores the tokens of each chunk of a row, the second finds the best token of
    each row, the third draws one token per row.
    """
    if not node.arg(0).dims[0]:
        return []
    batch = _TokenRows.of(node, ctx, {**ctx.tunables(DRAW), "T_ITEMS": 1})
    rows = batch.rows
    per = ctx.chunks_per_group(rows * batch.chunks, ctx.thresholds(SamplePartition).chunks)
    results = dict(best=ctx.scratch(rows, DType.INT32), whole=ctx.scratch(rows))
    counts = ctx.scratch(batch.scores.elems, DType.INT32)
    size, flops = (1, rows), 8 * rows * batch.n
    return [
        launch(
            batch.spread("sample_scores"), (ceil_div(batch.chunks, per), rows), (1, 1), flops,
            counts=counts, per=per, **batch.given, **batch.shared,
        ),
        launch(
            batch.kernel("sample_best"), size, (1, 1),
            status=batch.status, **results, **batch.shared,
        ),
        launch(
            batch.kernel("sample_draw"), size, (1, 1), flops,
            **batch.drawn, **results, **batch.shared,
        ),
    ]  # fmt: skip


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    """Returns the launches for GPUs, one after another: scores, best tokens, drawn tokens.

    In the first two launches a work-group handles a chunk of a row, in the third a whole row. The
    histogram has fewer buckets if the vocabulary is small, so that local memory suffices on any
    device.
    """
    tunables, tokens = ctx.tunables(DRAW), symbolic_shape(node.arg(0))[1]
    few = isinstance(tokens, int) and tokens <= _FEW_BUCKETS**2
    buckets = _FEW_BUCKETS if few else _BUCKETS
    chunk = min(tunables["T_CHUNK"] // 16, buckets)
    tunables |= {"T_VW": 1, "T_CHUNK": chunk, "T_LIST": ceil_div(tunables["T_LIST"], 4)}
    items, list_size = tunables["T_ITEMS"], tunables["T_LIST"]
    local_bytes = 16 * items + 12 * (buckets + _DIGITS + list_size + 1) + 2 * buckets + 56
    ctx.require(Requires(work_group_size=items, local_mem_bytes=local_bytes))
    if not node.arg(0).dims[0]:
        return []
    batch = _TokenRows.of(node, ctx, {**tunables, "T_BUCKETS": buckets}, **sub_group_of(ctx.caps))
    rows, local, flops = batch.rows, (items, 1), 8 * batch.rows * batch.n
    each = (batch.chunks * items, rows)
    results = dict(best=ctx.scratch(rows, DType.INT32), whole=ctx.scratch(rows))
    histogram = dict(histogram=ctx.scratch(2 * rows * buckets, DType.UINT32))
    results |= histogram | dict(weights=ctx.scratch(rows * batch.chunks, DType.UINT64))
    request = dict(settings=node.arg(1), limits=node.arg(2))
    # Estimated traffic of a draw per row: the scores of one chunk, and one logit.
    draw_args = batch.shared | {"scores": BufferArg(batch.scores, elems=rows * batch.chunk)}
    draw_args |= batch.drawn | {"logits": BufferArg(node.arg(0), elems=rows)}
    return [
        launch(
            batch.spread("sample_scores_group"), each, local, flops,
            **histogram, **batch.given, **batch.shared,
        ),
        launch(
            batch.kernel("sample_best_group"), each, local, flops,
            status=batch.status, **request, **results, **batch.shared,
        ),
        launch(
            batch.kernel("sample_draw"), (items, rows), local, 8 * rows * batch.chunk,
            **results, **draw_args,
        ),
    ]  # fmt: skip


@dataclass(frozen=True)
class _TokenRows:
    """The logits of a SampleTokens node as rows of n tokens, each split into chunks.

    Attributes:
        node: SampleTokens node.
        rows: Number of rows of logits.
        n: Number of tokens per row (vocabulary size).
        chunk: Number of tokens per chunk.
        chunks: Number of chunks per row.
        defines: Macros of all kernels of the node.
        shared: Arguments of all kernels of the node, by name.
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
        """Splits the rows of a SampleTokens node into chunks.

        Args:
            node: SampleTokens node.
            ctx: Allocates the scratch buffers.
            tunables: Macros by name; T_CHUNK, the preferred tokens per chunk, is removed from them.
            more: Extra macros of all kernels.

        Raises:
            ShapeError: The rows have no tokens.
        """
        logits = node.arg(0)
        rows, n = logits.dims
        if not n:
            where = f"SampleTokens '{node.name}'"
            raise ShapeError(f"{where}: {logits.type} has no tokens to sample.")
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
        """Scratch buffer of the float32 scores of all chunks."""
        scores: Scratch = self.shared["scores"]
        return scores

    @property
    def status(self) -> StatusWord:
        """Status word that reports a row without allowed tokens."""
        return StatusWord(self.node, 0, _WHAT, (), rule=_RULE)

    def kernel(self, entry: str, **more: Define) -> KernelSpec:
        """Returns the kernel with entry point `entry`, with `more` as extra macros."""
        return KernelSpec.of(_SOURCE, entry, **self.defines, **more)

    def spread(self, entry: str) -> KernelSpec:
        """Returns the kernel `entry`, which computes scores from the logits.

        The kernel's macros say which optional inputs of the node are present.
        """
        given = self.node.input(5), self.node.input(6)
        forms = (int(x is not None) for x in given)
        return self.kernel(entry, **dict(zip(_FORMS, forms, strict=True)))

    @property
    def given(self) -> dict[str, Any]:
        """Arguments of the score kernel besides `shared`, by name: input tensors and sizes."""
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
        """Arguments of the kernel that draws a token per row, by name, except scratch memory."""
        names = "logits", "settings", "limits"
        args = dict(zip(names, (self.node.arg(i) for i in range(3)), strict=True))
        token, logprob = self.node.outputs
        return dict(draw=self.node.arg(4), token=token, logprob=logprob, **args)


@register
@dataclass(frozen=True)
class SampleTokens(Op):
    """Samples a token for each row of logits.

    Outputs: tokens, int32 `[B]`, and their log-probabilities, float32 `[B]`, for B rows. The
    log-probability follows from the unmodified logits. NaN counts as -inf, inf as the largest
    float. Sampling parameters are tensors, so that one plan serves all requests.

    Inputs:
        logits: `[B, V]`, float32, float16 or bfloat16, for V tokens of the vocabulary.
        settings: float32 `[B, 8]`: temperature (0: greedy), top_p, min_p, typical_p, repetition,
            presence and frequency penalty, and the number of prompt tokens at the start of the
            history, which the last two penalties ignore. No effect: top_p >= 1, min_p <= 0,
            typical_p outside (0, 1), repetition penalty outside (0, inf).
        limits: int32 `[B, 4]`: top_k (0: all), length of the history, seed (low and high 32 bits).
        history: int32 `[B, length]`: tokens so far; tokens outside 0..V-1 are ignored.
        draw: int32 `[B]`: index into the random sequence of the seed.
        allowed: uint32 `[B, ceil(V / 32)]`, optional: bit v % 32 of word v // 32 allows token v.
        bias_ids: int32 `[B, biases]`, optional: tokens with a bias; ids outside 0..V-1 are ignored.
        bias_values: float32 `[B, biases]`, optional: added to the logits of the tokens `bias_ids`.

    Order: bias and mask, repetition penalty, presence and frequency penalties, temperature, top_k,
    top_p, min_p, typical_p. The draw uses the running sum of the remaining tokens' weights, in
    token order.

    Numerics: scores are float32, weights have 40 fractional bits; at the edge between two tokens
    devices may differ.

    Source: clrt. Order and semantics follow transformers' processors, and OpenAI's penalties.
    """

    domain = "clrt"
    accuracy = Accuracy.ACCUMULATED
    supported_storages = WIDENED_STORAGES
    variants = (
        Variant("cpu", _emit_cpu, _reject, requires.CPU),
        Variant("groups", _emit, _reject, speed=PlainEfficiency),
    )

    def infer(self, inputs: Types) -> list[TensorType]:
        logits = need(inputs, 0, self)
        if logits.dtype not in FLOAT_STORAGES or not agree(logits, (None, None)):
            raise ShapeError(f"SampleTokens: logits are {logits}; expected floats [B, V].")
        batch, tokens = logits.shape or (fresh_dim(), fresh_dim())
        words = ceil_div(tokens, 32) if isinstance(tokens, int) else None
        self._check(inputs, batch, words)
        return [TensorType(DType.INT32, (batch,)), TensorType(DType.FLOAT32, (batch,))]

    def _check(self, inputs: Types, batch: Dim, words: int | None) -> None:
        """Checks dtypes and shapes of the inputs after the logits.

        Args:
            inputs: Types of all inputs.
            batch: Number of rows of the logits.
            words: Number of uint32 per row of `allowed`; None if unknown.

        Raises:
            ShapeError: A dtype or shape does not fit.
        """
        types = [*inputs, None, None, None][:8]
        bias_shape = types[6].shape if types[6] is not None else None
        biases = bias_shape[1] if bias_shape is not None and len(bias_shape) == 2 else None
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
            type_ = need(inputs, index, self) if index < 5 else types[index]
            if type_ is not None and (type_.dtype is not dtype or not agree(type_, shape)):
                text = ",".join("?" if d is None else str(d) for d in shape)
                raise ShapeError(f"SampleTokens: {name} is {type_}; expected {dtype}[{text}].")
        if (types[6] is None) != (types[7] is None):
            raise ShapeError("SampleTokens: bias_ids and bias_values require each other.")

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        arrays = [*inputs, None, None, None][:8]
        assert arrays[0] is not None
        rows = range(len(arrays[0]))
        draws = [draw_row(*(None if x is None else x[row] for x in arrays)) for row in rows]
        for row, pair in enumerate(draws, start=1):
            if pair is None:
                raise NumberError(self.name, 0, _WHAT, row, _RULE)
        tokens, logprobs = zip(*filter(None, draws), strict=True) if draws else ((), ())
        return np.array(tokens, np.int32), np.array(logprobs, np.float32)

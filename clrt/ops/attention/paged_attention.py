"""PagedAttention: causal attention of a batch of tokens over a paged KV cache."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.device.requires import Requires
from clrt.errors import ShapeError
from clrt.ir.cl_code import Define
from clrt.ir.dims import provably_different
from clrt.ir.dtypes import WIDENED_STORAGES, DType
from clrt.ir.graph import Node
from clrt.ir.kv_cache_sizes import MAX_SLABS
from clrt.ir.op import Array, TensorType
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import Counter, KernelSpec, Launch, launch, optional, unread_arg
from clrt.kernels.sub_group import sub_group_of
from clrt.kernels.thresholds import Thresholds, Tunable, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.attention.page_layout import Int8PageLayout, PageLayout
from clrt.ops.attention.paged_cache import PagedOp, is_matrix, visible
from clrt.ops.base import Accuracy, Types
from clrt.ops.checks import need
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

CPU = tuned(
    "paged_attention_cpu",
    {"T_VW": (4, 8, 16), "T_MR": (2, 4, 6), "T_NK": (1, 2), "T_ROWS": (16, 32, 64)},
    T_VW=8,
    T_MR=4,
    T_NK=Tunable(2, "vectors", "Vectors of keys per register tile, as far as registers permit."),
    T_ROWS=32,
    T_PAGES=Tunable(4, "pages", "Pages of keys per block, whose scores stay in cache."),
)
# Maximum rows of a tile, and of a tile of 8-bit dot products (common/dots.clh).
_MAX_ROWS, _MAX_DOT_ROWS = 8, 4
# Floats of a partial result per query (one split of the pages), besides the weighted value sum.
_PART = 3
GPU = tuned(
    "paged_attention_gpu",
    {"T_ITEMS": (64, 128, 256)},
    T_ITEMS=128,
    T_HELD=Tunable(16, "elements", "Loads of a work-item in flight before the first is used."),
)
# GPU kernel: maximum rows of a tile (limited by registers), and keys per block.
_GPU_ROWS, _BLOCK = 4, 64
# The row size of a slab must be a multiple of this many elements, so that vector loads are aligned.
_VECTOR = 16


class PagedCpuPartition(Thresholds):
    """Thresholds of the partition of paged attention over CPU cores."""

    groups: int = tunable(
        8, "work-groups per core", "Minimum before a work-group handles several tokens."
    )
    few_tokens: int = tunable(
        8, "tokens", "Maximum of a step for the path whose work-groups split a token's pages."
    )
    few_groups: int = tunable(
        3,
        "work-groups per core",
        "Target on that path, if there are enough pages: several balance the load.",
    )

    group: ClassVar = "paged_attention_cpu_shares"


class PagedGpuPartition(Thresholds):
    """Thresholds of the partition of paged attention over GPU cores."""

    groups: int = tunable(
        4,
        "work-groups per core",
        "Target: fewer tokens per group, then splits of the pages, until it is reached.",
    )
    split_pages: int = tunable(2, "pages", "Minimum per split of a token's pages.")

    group: ClassVar = "paged_attention_gpu_shares"


def _launch_parts(node: Node, ctx: Lowering) -> tuple[dict[str, Define], dict[str, Any]]:
    """Returns the macros and arguments that all kernels of PagedAttention share."""
    op, slopes, sinks, biases = node.op_as(PagedAttention), *(node.input(i) for i in (3, 4, 5))
    args = {"y": node.output, "q": node.arg(0), **optional(slopes=slopes, sinks=sinks)}
    if biases is not None:
        args |= {"biases": biases, "distances": biases.dims[1]}
    args |= op.arguments(node, 1, node.inputs[op.first_slab :])
    args |= dict(scale=op.scale, left_window=max(op.left_window, 0), softcap=op.softcap)
    defines = {
        **op.defines(node, ctx.caps),
        "WINDOW": int(op.left_window >= 0),
        "SOFTCAP": int(op.softcap > 0),
        "ALIBI": int(slopes is not None),
        "SINKS": int(sinks is not None),
        "BIASES": int(biases is not None),
    }
    return defines, args


def _tile_rows(group: int) -> int:
    """Returns the tile height in rows, 1 to `_MAX_ROWS`, that needs the least padding.

    If several heights need equally little padding, the result is the largest of these heights.

    Args:
        group: Query heads per key head; each query head fills one row.
    """
    return min(range(1, _MAX_ROWS + 1), key=lambda rows: (ceil_div(group, rows) * rows, -rows))


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    op, tokens = node.op_as(PagedAttention), node.output.dims[0]
    if not tokens:
        return []
    tunables = ctx.tunables(CPU)
    lanes = min(tunables["T_VW"], op.head_size & -op.head_size)
    max_vectors = 4 if lanes == 16 else 2
    vectors = max(n for n in range(1, max_vectors + 1) if op.head_size // lanes % n == 0 and n != 3)
    defines, args = _launch_parts(node, ctx)
    form = op.form(node.arg(op.first_slab).dtype)
    levels = isinstance(form, Int8PageLayout)
    shares = ctx.thresholds(PagedCpuPartition)
    group, few = op.num_heads // op.kv_num_heads, tokens <= shares.few_tokens
    tile = _tile_rows(group) if few else tunables["T_MR"]
    rows = max(tunables["T_ROWS"] // tile, 1) * tile
    macros = {**defines, **tunables, "T_VW": lanes, "S_NV": vectors, "T_MR": tile, "T_ROWS": rows}
    dots = min(tile, _MAX_DOT_ROWS)
    macros |= {"S_DOTS": dots, "S_OTHERS": tile - dots} if levels else {}
    kernel = KernelSpec.of(
        "attention/paged_attention.cl", "paged_attention_cpu", **macros, FEW=int(few)
    )
    units, pairs = ctx.caps.compute_units, tokens * op.kv_num_heads
    # Simulators report a race if a work-group reads results of others, despite the atomic counter.
    splits = ceil_div(shares.few_groups * units, pairs) if few and not ctx.caps.simulator else 1
    # With many tokens a work-group handles several, as long as all cores have enough groups.
    span = clamp(pairs // (shares.groups * units), 1, max(rows // group, 1))
    size = (op.kv_num_heads, tokens if few else ceil_div(tokens, span), splits)
    if levels:
        assert isinstance(form, Int8PageLayout)
        records = math.prod(size) * rows * form.query_bytes
        args["records"] = ctx.scratch(records, DType.UINT8)
    parts = splits * tokens * op.num_heads * (op.head_size + _PART)
    args["parts"] = ctx.scratch(parts) if splits > 1 else unread_arg(node.output)
    args |= {"arrived": Counter(node), "span": 0 if few else span, "splits": splits}
    return [launch(kernel, size, (1, 1, 1), **args)]


def _reject_gpu(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why the GPU kernel does not apply; None if it does."""
    op = node.op_as(PagedAttention)
    pitch = node.arg(op.first_slab).dims[1]
    return f"pages of {pitch} elements are no whole vectors" if pitch % _VECTOR else None


def _emit_gpu(node: Node, ctx: Lowering) -> list[Launch]:
    op, tokens = node.op_as(PagedAttention), node.output.dims[0]
    if not tokens:
        return []
    defines, args = _launch_parts(node, ctx)
    shares = ctx.thresholds(PagedGpuPartition)
    group, wanted = op.num_heads // op.kv_num_heads, shares.groups * ctx.caps.cores
    slab, tunables = node.arg(op.first_slab), ctx.tunables(GPU)
    # A work-item sums four columns of the values.
    while 4 * tunables["T_ITEMS"] < op.head_size:
        tunables["T_ITEMS"] *= 2
    items = tunables["T_ITEMS"]
    form, sub_group = op.form(slab.dtype), sub_group_of(ctx.caps)
    max_rows = _GPU_ROWS
    if sub_group:
        tunables["T_HELD"] //= 2
    if isinstance(form, Int8PageLayout) and ctx.caps.sub_group_sizes:
        max_rows //= 2
    rows = min(1 << (group - 1).bit_length(), max_rows)
    while rows > 1 and _local_bytes(form, rows, items) > ctx.caps.local_mem_bytes:
        rows //= 2
    local = _local_bytes(form, rows, items)
    ctx.require(Requires(work_group_size=items, local_mem_bytes=local))
    # With many tokens a work-group handles as many as fill a tile.
    span = clamp(tokens * op.kv_num_heads // wanted, 1, max(_GPU_ROWS // group, 1))
    pairs = ceil_div(tokens, span) * op.kv_num_heads
    splits = clamp(ceil_div(wanted, pairs), 1, ceil_div(node.arg(2).dims[1], shares.split_pages))
    source = "attention/paged_attention_gpu.cl"
    macros = {**defines, **tunables, "S_ROWS": rows, **sub_group}
    queries = tokens * op.num_heads
    scratch = splits * queries * (op.head_size + _PART)
    args["parts"] = ctx.scratch(scratch) if splits > 1 else unread_arg(node.output)
    args |= {"span": span, "splits": splits}
    size = (op.kv_num_heads * items, ceil_div(tokens, span), splits)
    kernel = KernelSpec.of(source, "paged_attention_gpu", **macros)
    launches = [launch(kernel, size, (items, 1, 1), **args)]
    if splits > 1:
        form_defines = op.defines(node, ctx.caps)
        source = "attention/paged_attention_reduce_splits.cl"
        join = KernelSpec.of(source, "paged_attention_join", **form_defines)
        joined = dict(y=node.output, parts=args["parts"], queries=queries)
        launches.append(launch(join, (op.head_size, queries), None, **joined))
    return launches


def _local_bytes(form: PageLayout, rows: int, items: int) -> int:
    """Returns the bytes of local memory of a work-group of the GPU kernel.

    The memory holds the queries with their scales, the softmax weights, partial sums, and page
    addresses.

    Args:
        form: Layout of the KV pages.
        rows: Queries of a tile.
        items: Work-items of a work-group.
    """
    blocks = ceil_div(form.head_size, form.block) if isinstance(form, Int8PageLayout) else 0
    return 4 * (rows * (form.head_size + blocks + _BLOCK + 2 + 4 * items) + items + 32)


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    op, tokens = node.op_as(PagedAttention), node.output.dims[0]
    defines, args = _launch_parts(node, ctx)
    kernel = KernelSpec.of("attention/paged_attention_any.cl", "paged_attention_any", **defines)
    return [launch(kernel, (op.num_heads, tokens), None, **args)] if tokens else []


@register
@dataclass(frozen=True)
class PagedAttention(PagedOp):
    """Causal attention over a paged KV cache: a token sees its sequence up to its own position.

    Computes softmax(scale Q K^T) V for each head. Inputs: Q `[T, num_heads * head_size]` for T
    tokens; step `[T, 3]` (id, sequence and position of each token) and table (page numbers of each
    sequence), as in `PagedOp`; three optional inputs; the slabs of the cache, which already hold
    keys and values of these tokens. Output: like Q; 0 for a padding token.

    The optional inputs are float32. ALiBi slopes `[num_heads]`: the slope times the distance of a
    key is subtracted from its score. Attention sinks `[num_heads]`: the score of an additional key
    without a value. Biases `[num_heads, distances]`: added to the score of a key by its distance;
    the last bias also applies to larger distances.

    Attributes:
        scale: Factor of the scores.
        left_window: Number of keys before its own position that a token sees; -1 for no limit.
        softcap: Scores s become `softcap * tanh(s / softcap)`; 0 to disable.

    Numerics: float32 for any cache dtype, online softmax. With an 8-bit cache, queries are rounded
    to 8 bits, too, by blocks of 32 elements, or 16 if the head size is not a multiple of 32.

    Source: clrt; Kwon et al., PagedAttention (2023); Press et al., ALiBi (2021); Raffel et al., T5
    (2019) for biases.
    """

    scale: float = 1.0
    left_window: int = -1
    softcap: float = 0.0

    domain = "clrt"
    accuracy = Accuracy.ACCUMULATED
    supported_storages = WIDENED_STORAGES
    input_traits = InputTraits(half_storage=tuple(range(6, 6 + MAX_SLABS)))
    variants = (
        Variant("cpu", _emit_cpu, requires=requires.CPU),
        Variant("gpu", _emit_gpu, _reject_gpu, requires.GPU),
        Variant("any", _emit_any, speed=PlainEfficiency),
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
                wrong = provably_different(rows, self.num_heads) or (
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
        heads = q.reshape(len(q), self.num_heads, self.head_size)
        heads = self.form(DType.of(slabs[0].dtype)).rounded(heads).astype(np.float64)
        y = np.zeros(heads.shape)
        for token, query in enumerate(heads):
            target = self.place(step, table, token)
            if target is None:
                continue
            row, position = target
            first = max(position - self.left_window, 0) if self.left_window >= 0 else 0
            keys, values = visible(self, slabs, row, range(first, position + 1))
            group = self.num_heads // self.kv_num_heads
            keys, values = (np.repeat(x, group, axis=0) for x in (keys, values))
            scores = np.einsum("hd,hnd->hn", query, keys) * self.scale
            if self.softcap > 0:
                scores = self.softcap * np.tanh(scores / self.softcap)
            if slopes is not None:
                offsets = np.arange(first, position + 1) - position
                scores = scores + slopes.astype(np.float64)[:, None] * offsets
            if biases is not None:
                distances = position - np.arange(first, position + 1)
                columns = np.minimum(distances, biases.shape[1] - 1)
                scores = scores + biases.astype(np.float64)[:, columns]
            top = scores.max(axis=1, keepdims=True)
            if sinks is not None:
                top = np.maximum(top, sinks[:, None])
            weights = np.exp(scores - top)
            total = weights.sum(axis=1, keepdims=True)
            if sinks is not None:
                total = total + np.exp(sinks[:, None] - top)
            y[token] = np.einsum("hn,hnd->hd", weights / total, values)
        return (y.reshape(q.shape).astype(q.dtype),)

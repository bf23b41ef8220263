"""CacheStates: writes the keys and values of encoder states to a paged KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from clrt.ir.dtypes import WIDENED_STORAGES
from clrt.ir.graph import Node
from clrt.ir.kv_cache_sizes import MAX_SLABS, PAGE_TOKENS
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import Launch
from clrt.kernels.variant import Lowering
from clrt.ops.attention.paged_cache import PagedOp
from clrt.ops.attention.rotate_and_cache import by_heads, copy_slabs, launch_heads
from clrt.ops.base import Accuracy, Types
from clrt.ops.checks import need
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    op, x = node.op_as(CacheStates), node.arg(0)
    launches, states = copy_slabs(node, ctx), x.dims[0]
    if not states:
        return launches
    args = op.arguments(node, 1, node.outputs) | {"heads": 0}
    macros = {**op.defines(node, ctx.caps), "ROTARY": 0, "INTERLEAVED": 0, "NORM": 0, "QUERIES": 0}
    return [*launches, launch_heads(ctx, macros, 2 * op.kv_num_heads, states, x=x, **args)]


@register
@dataclass(frozen=True)
class CacheStates(PagedOp):
    """Writes K and V of encoder states to a paged KV cache.

    Cross-attention then reads K and V by PagedAttention. The input `step` of PagedAttention has,
    for each token, the table row of the encoder states and the position of the last state.

    Inputs: x `[T, 2 kv_num_heads * head_size]`, the heads of K and V of T states as columns; step
    `[T, 3]` (id, sequence and position of each state) and table (page numbers of each sequence),
    as in `PagedOp`; the slabs of the cache. Outputs: the slabs.

    Source: clrt; Kwon et al., PagedAttention (2023) for the pages.
    """

    domain = "clrt"
    accuracy = Accuracy.ACCUMULATED
    supported_storages = WIDENED_STORAGES
    input_traits = InputTraits(half_storage=tuple(range(3, 3 + MAX_SLABS)))
    variants = by_heads(_emit)

    @property
    def first_slab(self) -> int:
        return 3

    def inplace_candidates(self, node: Node) -> Iterable[tuple[int, Sequence[int]]]:
        return [(s, (self.first_slab + s,)) for s in range(MAX_SLABS)]

    def infer(self, inputs: Types) -> list[TensorType]:
        x, step = need(inputs, 0, self), need(inputs, 1, self)
        slabs = self.check_cache(inputs)
        self.check_rows(x, 2 * self.kv_num_heads * self.head_size, step)
        return [TensorType(slab.dtype, slab.shape) for slab in slabs]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, step, table = inputs[: self.first_slab]
        assert x is not None and step is not None and table is not None
        slabs = [np.array(s) for s in inputs[self.first_slab :] if s is not None]
        heads = x.reshape(len(x), 2, self.kv_num_heads, self.head_size)
        for token, (k, v) in enumerate(heads):
            target = self.place(step, table, token)
            if target is None:
                continue
            row, position = target
            self.keep(slabs, int(row[position // PAGE_TOKENS]), position, k, v)
        return tuple(slabs)

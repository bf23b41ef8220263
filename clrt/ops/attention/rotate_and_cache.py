"""RotateAndCache: rotates Q and K of a QKV projection (RoPE); writes K and V to a paged cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clrt.device import requires
from clrt.errors import ShapeError
from clrt.ir.cl_code import Define
from clrt.ir.dims import Dim, provably_different
from clrt.ir.dtypes import WIDENED_STORAGES
from clrt.ir.graph import Node
from clrt.ir.kv_cache_sizes import MAX_SLABS, PAGE_TOKENS
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, launch
from clrt.kernels.strided import contiguous_strides, copy_launches
from clrt.kernels.variant import Emit, Lowering, Variant
from clrt.ops.attention.paged_cache import PagedOp
from clrt.ops.base import Accuracy, Types
from clrt.ops.checks import need
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass

# Work-items of a work-group on GPUs, one work-group per head.
_ITEMS = 32


def copy_slabs(node: Node, ctx: Lowering) -> list[Launch]:
    """Emits copies of the slabs (page buffers) of a KV cache from inputs to outputs of a node.

    The slabs are the node's last inputs and last outputs. A copy is skipped if the plan lets the
    output reuse the memory of its input.
    """
    launches: list[Launch] = []
    for slab, output in zip(node.inputs[-MAX_SLABS:], node.outputs[-MAX_SLABS:], strict=True):
        assert slab is not None
        strides = contiguous_strides(slab.dims)
        copies = copy_launches(
            ctx, BufferArg(slab), BufferArg(output), slab.dtype, slab.dims, strides, strides
        )
        launches += [replace(copy, copy=(slab, output)) for copy in copies]
    return launches


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    op, x = node.op_as(RotateAndCache), node.arg(0)
    launches = copy_slabs(node, ctx)
    tokens = x.dims[0]
    if not tokens:
        return launches
    cosines, sines, q_scale, k_scale = (node.input(i) for i in range(3, 7))
    args = op.arguments(node, 1, node.outputs[1:])
    if cosines is not None:
        args |= {"cosines": cosines, "sines": sines, "turned": 2 * cosines.dims[1]}
    if q_scale is not None:
        args |= {"q_scale": q_scale, "k_scale": k_scale, "epsilon": op.epsilon}
    macros = {
        **op.defines(node, ctx.caps),
        "ROTARY": int(cosines is not None),
        "INTERLEAVED": int(op.interleaved),
        "NORM": int(q_scale is not None),
        "QUERIES": 1,
    }
    heads = op.num_heads + 2 * op.kv_num_heads
    return [*launches, launch_heads(ctx, macros, heads, tokens, q=node.outputs[0], x=x, **args)]


def launch_heads(
    ctx: Lowering, macros: Mapping[str, Define], heads: int, tokens: int, /, **args: Any
) -> Launch:
    """Returns the launch of the kernel rotate_and_cache, which rotates heads and writes K and V.

    Args:
        macros: Macros of the kernel besides T_ITEMS.
        heads: Number of heads of a token in the input.
        tokens: Number of tokens.
        args: Kernel arguments.
    """
    items, groups = (1, 1) if ctx.caps.is_cpu else (_ITEMS, heads)
    source = "attention/rotate_and_cache.cl"
    kernel = KernelSpec.of(source, "rotate_and_cache", **macros, T_ITEMS=items)
    return launch(kernel, (groups * items, tokens), (items, 1), **args)


def by_heads(emit: Emit) -> tuple[Variant, ...]:
    """Returns the CPU and the GPU variant of an op that launches the kernel rotate_and_cache.

    Args:
        emit: Emit function of both variants, which calls `launch_heads`.
    """
    shared = replace(requires.GPU, work_group_size=_ITEMS)
    return Variant("cpu", emit, requires=requires.CPU), Variant("group", emit, requires=shared)


@register
@dataclass(frozen=True)
class RotateAndCache(PagedOp):
    """Rotates the heads of Q and K (RoPE), and writes K and V to a paged KV cache.

    Inputs: x `[T, (num_heads + 2 kv_num_heads) * head_size]`, the heads of Q, K and V of T tokens
    as columns; step `[T, 3]` (id, sequence and position of each token) and table (page numbers of
    each sequence), as in `PagedOp`; optionally cosines and sines `[T, R / 2]`, by which the first R
    elements of each head are rotated; optionally two scales `[head_size]`, with which the heads of
    Q and of K are normalized (RMS) before; the slabs of the cache. Outputs: Q
    `[T, num_heads * head_size]`, and the slabs.

    Attributes:
        interleaved: If true, elements 2i and 2i + 1 form a rotated pair; else i and i + R / 2.
        epsilon: Added to the mean square of a head before the root.

    Source: clrt; Su et al., RoFormer (2021); Kwon et al., PagedAttention (2023) for the pages.
    """

    interleaved: bool = False
    epsilon: float = 1e-6

    domain = "clrt"
    accuracy = Accuracy.ACCUMULATED
    supported_storages = WIDENED_STORAGES
    input_traits = InputTraits(half_storage=tuple(range(7, 7 + MAX_SLABS)))
    variants = by_heads(_emit)

    @property
    def first_slab(self) -> int:
        return 7

    def inplace_candidates(self, node: Node) -> Iterable[tuple[int, Sequence[int]]]:
        return [(1 + s, (self.first_slab + s,)) for s in range(MAX_SLABS)]

    def infer(self, inputs: Types) -> list[TensorType]:
        x, step = need(inputs, 0, self), need(inputs, 1, self)
        slabs = self.check_cache(inputs)
        heads = self.num_heads + 2 * self.kv_num_heads
        self.check_rows(x, heads * self.head_size, step)
        for first, what in ((3, "tables"), (5, "scales")):
            if (inputs[first] is None) != (inputs[first + 1] is None):
                raise ShapeError(f"{self.name}: one of the two {what} is left out.")
        tables = [t for t in inputs[3:5] if t is not None]
        widths: list[Dim] = [t.shape[1] for t in tables if t.shape and len(t.shape) == 2]
        for table, width in zip(tables, widths, strict=False):
            wide = isinstance(width, int) and 2 * width > self.head_size
            if wide or provably_different(width, widths[0]):
                raise ShapeError(f"{self.name}: a table {table} for heads of {self.head_size}.")
            self.check_rows(table, width, step)
        self.check_vector(inputs, 5, self.head_size)
        self.check_vector(inputs, 6, self.head_size)
        tokens = None if x.shape is None else x.shape[0]
        q = None if tokens is None else (tokens, self.num_heads * self.head_size)
        return [TensorType(x.dtype, q), *(TensorType(s.dtype, s.shape) for s in slabs)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, step, table, cosines, sines, q_scale, k_scale = inputs[: self.first_slab]
        assert x is not None and step is not None and table is not None
        slabs = [np.array(s) for s in inputs[self.first_slab :] if s is not None]
        tokens, first, size = len(x), self.num_heads, self.head_size
        heads = x.reshape(tokens, first + 2 * self.kv_num_heads, size).astype(np.float64)
        q, k, v = np.split(heads, [first, first + self.kv_num_heads], axis=1)
        q, k = self._normalised(q, q_scale), self._normalised(k, k_scale)
        if cosines is not None and sines is not None:
            q, k = (self._rotated(h, cosines[:, None], sines[:, None]) for h in (q, k))
        for token in range(tokens):
            target = self.place(step, table, token)
            if target is None:
                continue
            row, position = target
            self.keep(slabs, int(row[position // PAGE_TOKENS]), position, k[token], v[token])
        return (q.reshape(tokens, first * size).astype(x.dtype), *slabs)

    def _normalised(self, heads: Array, scale: Array | None) -> Array:
        if scale is None:
            return heads
        square = np.mean(heads * heads, axis=-1, keepdims=True)
        return np.asarray(heads / np.sqrt(square + self.epsilon) * scale)

    def _rotated(self, heads: Array, cosines: Array, sines: Array) -> Array:
        """Rotates the first R elements of each head (RoPE) by NumPy; the others stay unchanged.

        Args:
            heads: Heads with their elements along the last axis.
            cosines: Cosine of each rotated pair, with a last axis of R / 2.
            sines: Sines in the shape of `cosines`.
        """
        rotated, pairs = heads.copy(), cosines.shape[-1]
        if self.interleaved:
            first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        else:
            first, second = slice(0, pairs), slice(pairs, 2 * pairs)
        a, b = heads[..., first], heads[..., second]
        rotated[..., first] = a * cosines - b * sines
        rotated[..., second] = b * cosines + a * sines
        return rotated

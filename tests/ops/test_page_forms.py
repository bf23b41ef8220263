"""8-bit cache pages: bounds of rounding errors."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.ir.dtypes import DType
from clrt.ir.kv_cache_sizes import MAX_SLABS, PAGE_TOKENS
from clrt.ir.op import Array
from clrt.ops.attention.page_layout import page_form
from clrt.ops.attention.paged_attention import PagedAttention

KV_HEADS, GROUP = 2, 3


def pages_of(keys: Array, values: Array, dtype: DType) -> Array:
    """Packs keys and values `[positions, KV_HEADS, D]` into pages `[pages, …]`."""
    form = page_form(keys.shape[2], dtype)
    pages = np.zeros((len(keys) // PAGE_TOKENS, KV_HEADS, form.head_elements), dtype.numpy)
    for place, (key, value) in enumerate(zip(keys, values, strict=True)):
        form.keep(pages[place // PAGE_TOKENS], place % PAGE_TOKENS, key, value)
    return pages.reshape(len(pages), -1)


@pytest.mark.parametrize("size", [8, 48, 64])
def test_uint8_cache_pages_stay_within_error_bounds(size: int) -> None:
    """Elements err by at most half a level of the block maximum; attention by no more."""
    rng = np.random.default_rng(size)
    places, scale = 3 * PAGE_TOKENS, size**-0.5
    keys, values = rng.standard_normal((2, places, KV_HEADS, size))
    keys *= rng.uniform(0.1, 4, (places, 1, 1))
    form = page_form(size, DType.UINT8)
    half_level = (1 + 2.0**-9) / 254  # scales are float16

    pages = pages_of(keys, values, DType.UINT8)
    heads = [form.read(page.reshape(KV_HEADS, -1)) for page in pages]
    kept_keys, kept_values = (
        np.concatenate(found, axis=1).swapaxes(0, 1) for found in zip(*heads, strict=True)
    )
    block = 16 if size % 32 else 32
    starts = range(0, size, block)
    key_bound = np.concatenate(
        [
            np.broadcast_to(np.abs(part).max(-1, keepdims=True), part.shape)
            for part in (keys[..., s : s + block] for s in starts)
        ],
        axis=-1,
    )
    value_bound = np.abs(values).max(-1, keepdims=True)
    assert (np.abs(kept_keys - keys) <= key_bound * half_level).all()
    assert (np.abs(kept_values - values) <= value_bound * half_level).all()

    q = rng.standard_normal((1, KV_HEADS * GROUP * size)).astype(np.float32)
    op = PagedAttention(KV_HEADS * GROUP, KV_HEADS, size, scale=scale)
    step = np.array([[0, 0, places - 1]], np.int32)
    table = np.arange(len(pages), dtype=np.int32)[None]

    def attended(dtype: DType) -> Array:
        slab = pages_of(keys, values, dtype)
        (y,) = op.reference(q, step, table, *(None,) * 3, slab, *[slab[:0]] * (MAX_SLABS - 1))
        return y.reshape(KV_HEADS, -1)

    # A score errs by e at most, so each weight by a factor of exp(2 e).
    queries = np.abs(q.reshape(KV_HEADS, GROUP, size))
    rounding = np.einsum("hgd,nhd->hgn", queries, key_bound)
    largest = queries.max(-1, keepdims=True) * np.abs(kept_keys).sum(-1).T[:, None]
    e = (rounding + largest).max() * half_level * scale
    bound = np.expm1(2 * e) * np.abs(values).max() + value_bound.max() * half_level
    error = np.abs(attended(DType.UINT8) - attended(DType.FLOAT32)).max()
    assert error <= bound
    assert error <= 0.03 * np.abs(values).max()

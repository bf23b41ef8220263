"""Cache pages: shared prefixes, growth and eviction."""

from __future__ import annotations

import random

import pytest

from clrt.errors import OutOfMemoryError
from clrt.generation.page_pool import NOTHING, KvPagePool
from clrt.ir.kv_cache_sizes import PAGE_TOKENS


def pool_of(*sizes: int) -> KvPagePool:
    left = list(sizes)
    return KvPagePool(lambda: left.pop(0) if left else 0)


def filled(pool: KvPagePool, tokens: list[int]) -> list[int]:
    """The pages of a sequence that ran through its tokens."""
    pages, content = pool.match_prefix(tokens)
    for first in range(len(pages) * PAGE_TOKENS, len(tokens), PAGE_TOKENS):
        part = tokens[first : first + PAGE_TOKENS]
        pages.append(pool.allocate())
        if len(part) == PAGE_TOKENS:
            content = pool.register(pages[-1], content, part)
    return pages


def test_page_pool_shares_common_prefixes() -> None:
    pool = pool_of(8)
    common = list(range(2 * PAGE_TOKENS))
    first = filled(pool, [*common, 7, 8])
    second = filled(pool, [*common, 9])
    assert first[:2] == second[:2] and first[2] != second[2]
    pool.release(first)
    pool.release(second)
    assert pool.in_use == 0
    assert pool.match_prefix([*common, 1])[0] == first[:2]


def test_page_pool_allocates_free_then_trailing_pages() -> None:
    pool = pool_of(4)
    tokens = list(range(3 * PAGE_TOKENS))
    pages = filled(pool, tokens)
    pool.release(pages)
    assert {pool.allocate(), pool.allocate()} == {3, pages[2]}
    assert pool.match_prefix(tokens)[0] == pages[:2]


def test_page_pool_never_evicts_pages_in_use() -> None:
    pool = pool_of(2, 1)
    pages = filled(pool, list(range(2 * PAGE_TOKENS)))
    assert pool.allocate() not in pages
    with pytest.raises(OutOfMemoryError, match="cannot hold more than 96 tokens"):
        pool.allocate()


def test_page_pool_prefix_match_returns_pages_of_its_tokens() -> None:
    """Random sequences start and end; each matched page contains the expected tokens."""
    rng = random.Random(3)
    pool = pool_of(6, 6, 12)
    holds: dict[int, tuple[int, ...]] = {}
    running: list[list[int]] = []
    for _ in range(3000):
        if running and (len(running) > 4 or rng.random() < 0.5):
            pool.release(running.pop(rng.randrange(len(running))))
            continue
        tokens = [rng.randrange(2) for _ in range(4)]
        tokens = [t for t in tokens for _ in range(PAGE_TOKENS)][
            : rng.randrange(1, 4 * PAGE_TOKENS)
        ]
        pages, content = pool.match_prefix(tokens)
        for index, page in enumerate(pages):
            assert holds[page] == tuple(tokens[: (index + 1) * PAGE_TOKENS])
        for first in range(len(pages) * PAGE_TOKENS, len(tokens), PAGE_TOKENS):
            part = tokens[first : first + PAGE_TOKENS]
            page = pool.allocate()
            assert all(page not in other for other in running) and page not in pages
            pages.append(page)
            holds[page] = tuple(tokens[: first + len(part)])
            if len(part) == PAGE_TOKENS:
                content = pool.register(page, content, part)
        running.append(pages)
    for pages in running:
        pool.release(pages)
    pool.clear()
    assert pool.in_use == 0 and pool.match_prefix([0] * PAGE_TOKENS) == ([], NOTHING)

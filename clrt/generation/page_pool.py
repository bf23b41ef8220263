"""Page allocator of a KV cache: reference counts, and reuse of pages by token prefix."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import TypeAlias

from clrt.errors import OutOfMemoryError
from clrt.ir.kv_cache_sizes import PAGE_TOKENS

# Identity of a page's content: the content id of the page before it; then the tokens of the page,
# or its part of an encoder input.
_Key: TypeAlias = "tuple[int, tuple[Hashable, ...]]"
NOTHING = 0  # content id before the first page of a sequence
LONG = -1  # as NOTHING, for texts so long that their keys have other rotary angles (LongRoPE)


class KvPagePool:
    """Allocates the pages of a KV cache; a page is a number.

    All sequences with the same token prefix share its full pages, so common prefixes of prompts are
    computed once. Unreferenced full pages stay cached, and are evicted least recently used first.

    Args:
        grow: Allocates memory for new pages and returns their number; 0 if the cache cannot grow.
    """

    def __init__(self, grow: Callable[[], int]) -> None:
        self._grow = grow
        self._count = 0
        self._free: list[int] = []
        self._users: dict[int, int] = {}
        self._contents = count(NOTHING + 1)
        self._by_content: dict[_Key, tuple[int, int]] = {}  # content id and page of each full page
        self._keys: dict[int, _Key] = {}
        # Unreferenced full pages, the least recently used first.
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def in_use(self) -> int:
        """Number of pages that have references."""
        return len(self._users)

    def match_prefix(self, tokens: Sequence[int], after: int = NOTHING) -> tuple[list[int], int]:
        """Finds the cached pages of a token prefix and adds a reference to each.

        Args:
            tokens: Tokens of a sequence.
            after: Content id (see `register`) before the first page: `NOTHING`, `LONG`, or an
                encoder input's.

        Returns:
            The pages, and the content id of the last page; [] and `after` if no page is cached.
        """
        firsts = range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS)
        return self.match_contents(
            (tuple(tokens[first : first + PAGE_TOKENS]) for first in firsts), after
        )

    def match_contents(
        self, parts: Iterable[tuple[Hashable, ...]], after: int = NOTHING
    ) -> tuple[list[int], int]:
        """Finds the cached pages of a sequence of page contents and adds a reference to each.

        Stops at the first content without a page.

        Args:
            parts: Content of each page, as passed to `register`, such as its tokens.
            after: Content id before the first page: a number for the content of all earlier pages,
                as returned by `register`.

        Returns:
            The pages, and the content id of the last page; [] and `after` if no page is cached.
        """
        pages: list[int] = []
        last = after
        for part in parts:
            entry = self._by_content.get((last, part))
            if entry is None:
                break
            last, page = entry
            self._cached.pop(page, None)
            self._users[page] = self._users.get(page, 0) + 1
            pages.append(page)
        return pages, last

    def allocate(self) -> int:
        """Allocates a page: a free page, else the least recently used cached page, else a new one.

        Raises:
            OutOfMemoryError: All pages are referenced, and the cache cannot grow.
        """
        if not self._free and not self._cached:
            more = self._grow()
            self._free = list(range(self._count + more - 1, self._count - 1, -1))
            self._count += more
        if self._free:
            page = self._free.pop()
        elif self._cached:
            page, _ = self._cached.popitem(last=False)
            del self._by_content[self._keys.pop(page)]
        else:
            raise OutOfMemoryError(
                f"The cache cannot hold more than {self._count * PAGE_TOKENS} tokens, all in "
                "use by running texts; shorten them, run fewer at a time, or raise the memory "
                "limit."
            )
        self._users[page] = 1
        return page

    def register(self, page: int, before: int, part: Sequence[Hashable]) -> int:
        """Records the content of a full page for reuse, and returns its content id.

        A content id is a number for the content of a page and of all pages before it.

        Args:
            page: The page.
            before: Content id of the preceding page; for the first page `NOTHING`, `LONG` or the
                content id of an encoder input.
            part: Content of the page, such as its `PAGE_TOKENS` tokens.
        """
        key = (before, tuple(part))
        if key not in self._by_content:
            self._by_content[key] = next(self._contents), page
            self._keys[page] = key
        return self._by_content[key][0]

    def release(self, pages: Sequence[int]) -> None:
        """Drops one reference per page. Trailing pages that stay cached will be evicted first."""
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page]:
                continue
            del self._users[page]
            if page in self._keys:
                self._cached[page] = None
            else:
                self._free.append(page)

    def clear(self) -> None:
        """Frees all cached pages that are not referenced, and forgets their contents."""
        while self._cached:
            page, _ = self._cached.popitem()
            del self._by_content[self._keys.pop(page)]
            self._free.append(page)

"""Which pages of a cache are free, whose they are, and which begin with the same tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import TypeAlias

from clrt.errors import OutOfMemoryError
from clrt.ops.attention.page_layout import PAGE_TOKENS

# What a page's content depends on: the content of the page before it, by its number among all that
# there ever were, and what it has itself: its tokens, or a part of a source.
_Key: TypeAlias = "tuple[int, tuple[Hashable, ...]]"
NOTHING = 0  # in front of a sequence's first page
LONG = -1  # the same, of a text whose length changes the angles of its keys (LongRoPE)


class KvPagePool:
    """The pages of a cache, by number.

    A page that is full belongs to all sequences that begin with its tokens; so what two prompts
    have in common is computed once. When its last sequence ends it keeps its content until its room
    is needed, the longest unused first.

    Args:
        grow: Makes room for more pages and says how many; 0 where there is none.
    """

    def __init__(self, grow: Callable[[], int]) -> None:
        self._grow = grow
        self._count = 0
        self._free: list[int] = []
        self._users: dict[int, int] = {}
        self._contents = count(NOTHING + 1)
        self._full: dict[_Key, tuple[int, int]] = {}  # content, and the page that has it
        self._keys: dict[int, _Key] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()  # full pages that no sequence uses

    @property
    def in_use(self) -> int:
        """Pages that sequences have."""
        return len(self._users)

    def match_prefix(self, tokens: Sequence[int], after: int = NOTHING) -> tuple[list[int], int]:
        """The pages that hold a beginning of the tokens already, now in use once more, and what
        content the last of them is.

        Args:
            after: The content that they are behind: what a source is to a text.
        """
        firsts = range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS)
        return self.held((tuple(tokens[first : first + PAGE_TOKENS]) for first in firsts), after)

    def held(
        self, parts: Iterable[tuple[Hashable, ...]], after: int = NOTHING
    ) -> tuple[list[int], int]:
        """The same of what pages have, whatever it is."""
        found: list[int] = []
        last = after
        for part in parts:
            held = self._full.get((last, part))
            if held is None:
                break
            last, page = held
            self._kept.pop(page, None)
            self._users[page] = self._users.get(page, 0) + 1
            found.append(page)
        return found, last

    def take(self) -> int:
        """A page to write to.

        Raises:
            OutOfMemoryError: All are in use, and there is no room for more.
        """
        if not self._free and not self._kept:
            more = self._grow()
            self._free = list(range(self._count + more - 1, self._count - 1, -1))
            self._count += more
        if self._free:
            page = self._free.pop()
        elif self._kept:
            page, _ = self._kept.popitem(last=False)
            del self._full[self._keys.pop(page)]
        else:
            raise OutOfMemoryError(
                f"The cache has no room for more than {self._count * PAGE_TOKENS} tokens, and "
                "running texts use all of them; shorten them, run fewer at a time, or allow more "
                "memory."
            )
        self._users[page] = 1
        return page

    def register(self, page: int, before: int, part: Sequence[Hashable]) -> int:
        """Notes that a page holds this, such as PAGE tokens, behind some content; what content that
        is.
        """
        key = (before, tuple(part))
        if key not in self._full:
            self._full[key] = next(self._contents), page
            self._keys[page] = key
        return self._full[key][0]

    def release(self, pages: Sequence[int]) -> None:
        """Ends one use of each page; the last ones are the first whose room is used again."""
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page]:
                continue
            del self._users[page]
            if page in self._keys:
                self._kept[page] = None
            else:
                self._free.append(page)

    def clear(self) -> None:
        """Forgets the content of pages that no sequence uses."""
        while self._kept:
            page, _ = self._kept.popitem()
            del self._full[self._keys.pop(page)]
            self._free.append(page)

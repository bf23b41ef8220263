"""Texts and tokens that end an answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from clrt.errors import InputError


class StopMatcher:
    """Finds stop texts in a text that comes piece by piece, wherever its pieces end.

    What may be the start of a stop text is kept back. Of stop texts the one that is complete first
    counts, and of several that end at one character the longest. A call takes the time of its piece
    and of what is kept back.

    Attributes:
        matched: The stop text or the token that ended the answer; None before.

    Args:
        strings: Stop texts, none of them empty.
        tokens: Ids of tokens that end the answer.
        include: Whether the answer keeps the stop text, or the text of the token.

    Raises:
        InputError: A stop text is empty.

    Source: A. V. Aho and M. J. Corasick, "Efficient string matching", 1975.
    """

    def __init__(
        self, strings: Sequence[str], tokens: Iterable[int] = (), include: bool = False
    ) -> None:
        if not all(strings):
            raise InputError("A stop text is empty, and would end every answer; leave it out.")
        self.matched: str | int | None = None
        self._tokens = frozenset(tokens)
        self._include = include
        # Per state, which is a beginning of stop texts: the next ones, the longest other state
        # that ends it, its length, and the longest stop text that ends it.
        self._next: list[dict[str, int]] = [{}]
        self._other = [0]
        self._length = [0]
        self._match = [""]
        for text in strings:
            self._add(text)
        self._link()
        self._state = 0
        self._held = ""

    def push(self, text: str, token: int | None = None) -> str:
        """What is certain to be part of the answer with one more piece of text.

        Args:
            text: The piece; may be empty.
            token: The token that it came with.
        """
        if self.matched is not None:
            return ""
        if token in self._tokens:
            self.matched = token
            text, self._held = self._held + (text if self._include else ""), ""
            return text
        if len(self._next) == 1:
            return text
        return self._scan(text)

    def finish(self) -> str:
        """What was kept back, once the answer has ended otherwise."""
        rest, self._held, self._state = self._held, "", 0
        return rest

    def _scan(self, text: str) -> str:
        state = self._state
        for position, letter in enumerate(text, 1):
            while state and letter not in self._next[state]:
                state = self._other[state]
            state = self._next[state].get(letter, 0)
            if match := self._match[state]:
                whole = self._held + text[:position]
                self.matched, self._held = match, ""
                return whole if self._include else whole.removesuffix(match)
        self._state = state
        whole = self._held + text
        certain = len(whole) - self._length[state]
        self._held = whole[certain:]
        return whole[:certain]

    def _add(self, text: str) -> None:
        state = 0
        for letter in text:
            if letter not in self._next[state]:
                self._next[state][letter] = len(self._next)
                self._next.append({})
                self._other.append(0)
                self._length.append(self._length[state] + 1)
                self._match.append("")
            state = self._next[state][letter]
        self._match[state] = text

    def _link(self) -> None:
        """Where to go on from each state whose next letter does not come."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            self._match[state] = self._match[state] or self._match[self._other[state]]
            for letter, after in self._next[state].items():
                other = self._other[state]
                while other and letter not in self._next[other]:
                    other = self._other[other]
                self._other[after] = self._next[other].get(letter, 0)
                queue.append(after)

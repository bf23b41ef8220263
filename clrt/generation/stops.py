"""Detection of stop strings and end tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from clrt.errors import InputError


class StopMatcher:
    """Finds stop strings in streamed text, also across chunks.

    Text that may be the start of a stop string is buffered. The first stop string that is complete
    ends the text; of several that end at the same character, the longest counts. The time per call
    is linear in the chunk and the buffered text.

    Attributes:
        matched: Stop string or end token that ended the text; None while it has not ended.

    Args:
        strings: Stop strings, which may not be empty.
        tokens: Token ids that end the text.
        include: Whether returned text includes the stop string, or the text of the end token.

    Raises:
        InputError: A stop string is empty.

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
        # Aho-Corasick automaton; a state is a prefix of stop strings. Per state: transitions by
        # letter, failure link, length of the prefix, and longest stop string that ends there.
        self._next: list[dict[str, int]] = [{}]
        self._failure = [0]
        self._length = [0]
        self._match = [""]
        for text in strings:
            self._add(text)
        self._link()
        self._state = 0
        self._buffer = ""

    def push(self, text: str, token: int | None = None) -> str:
        """Adds a text chunk; returns text that certainly belongs to the result, "" after the end.

        Args:
            text: Text chunk; may be empty.
            token: Id of the last token of the chunk, if this may be an end token; else None.
        """
        if self.matched is not None:
            return ""
        if token in self._tokens:
            self.matched = token
            text, self._buffer = self._buffer + (text if self._include else ""), ""
            return text
        if len(self._next) == 1:
            return text
        return self._scan(text)

    def finish(self) -> str:
        """Returns the buffered text; call it if a text ends without stop string or end token."""
        rest, self._buffer, self._state = self._buffer, "", 0
        return rest

    def _scan(self, text: str) -> str:
        """Adds text; returns the text that cannot belong to a stop string any more."""
        state = self._state
        for position, letter in enumerate(text, 1):
            while state and letter not in self._next[state]:
                state = self._failure[state]
            state = self._next[state].get(letter, 0)
            if match := self._match[state]:
                whole = self._buffer + text[:position]
                self.matched, self._buffer = match, ""
                return whole if self._include else whole.removesuffix(match)
        self._state = state
        whole = self._buffer + text
        certain = len(whole) - self._length[state]
        self._buffer = whole[certain:]
        return whole[:certain]

    def _add(self, text: str) -> None:
        """Adds the states of a stop string to the automaton."""
        state = 0
        for letter in text:
            if letter not in self._next[state]:
                self._next[state][letter] = len(self._next)
                self._next.append({})
                self._failure.append(0)
                self._length.append(self._length[state] + 1)
                self._match.append("")
            state = self._next[state][letter]
        self._match[state] = text

    def _link(self) -> None:
        """Computes the failure links of the Aho-Corasick automaton by breadth-first search."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            self._match[state] = self._match[state] or self._match[self._failure[state]]
            for letter, after in self._next[state].items():
                other = self._failure[state]
                while other and letter not in self._next[other]:
                    other = self._failure[other]
                self._failure[after] = self._next[other].get(letter, 0)
                queue.append(after)

"""Guesses by what a text says already: where its last tokens were before, and what followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

# So many tokens are looked for, the most first.
_LENGTHS = (3, 2)
# Of these an index keeps so many places, the last ones.
_MOST_PLACES = 8
# The place whose tokens before it are alike furthest back is taken; no further than this.
_MOST_ALIKE = 16


@dataclass
class LookupIndex:
    """Where each few tokens of a text were last.

    What is done for a token does not depend on the length of the text.

    Attributes:
        tokens: The text.

    Source: Saxena, Prompt Lookup Decoding (2023); transformers' `PromptLookupCandidateGenerator`,
    which takes the first place.
    """

    tokens: list[int] = field(default_factory=list)
    _places: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds what follows."""
        for token in tokens:
            end = len(self.tokens)
            for length in _LENGTHS:
                if end >= length:
                    found = self._places.setdefault(tuple(self.tokens[end - length :]), [])
                    found.append(end)
                    del found[:-_MOST_PLACES]
            self.tokens.append(token)

    def guess(self, count: int) -> tuple[list[int], int]:
        """What may follow, and how many tokens before it are alike; none and 0 where nothing is.

        What is copied may reach into the guesses themselves: so a text that repeats itself goes on.
        """
        for length in _LENGTHS:
            places = self._places.get(tuple(self.tokens[-length:]), ())
            if not places or count < 1:
                continue
            alike, place = max((self._alike(place), place) for place in places)
            made = self.tokens[place : place + count]
            while len(made) < count:
                made.append(made[len(made) - (len(self.tokens) - place)])
            return made, alike
        return [], 0

    def _alike(self, place: int) -> int:
        """How many tokens before a place are the last ones of the text."""
        tokens, end = self.tokens, len(self.tokens)
        most = min(place, _MOST_ALIKE)
        return next((k for k in range(most) if tokens[place - 1 - k] != tokens[end - 1 - k]), most)

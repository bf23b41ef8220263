"""Prompt lookup: proposes the tokens that followed an earlier occurrence of the last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from clrt.util.fast_dataclass import dataclass

# Lengths of the n-grams to look up, the longest first.
_LENGTHS = (3, 2)
# Maximum number of occurrences kept per n-gram, the latest ones.
_MAX_OCCURRENCES = 8
# Maximum number of tokens compared before an occurrence. Of several occurrences the one with the
# most equal tokens before it wins.
_MAX_MATCH = 16


@dataclass
class LookupIndex:
    """Index of the n-grams of a text, for prompt lookup.

    The time to add a token does not depend on the length of the text.

    Attributes:
        tokens: Tokens of the text.

    Source: Saxena, Prompt Lookup Decoding (2023); transformers' `PromptLookupCandidateGenerator`,
    which uses the first occurrence.
    """

    tokens: list[int] = field(default_factory=list)
    _places: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the indexed text."""
        for token in tokens:
            end = len(self.tokens)
            for length in _LENGTHS:
                if end >= length:
                    occurrences = self._places.setdefault(tuple(self.tokens[end - length :]), [])
                    occurrences.append(end)
                    del occurrences[:-_MAX_OCCURRENCES]
            self.tokens.append(token)

    def guess(self, count: int) -> tuple[list[int], int]:
        """Proposes the tokens that followed an earlier occurrence of the text's last tokens.

        If the text ends before `count` tokens are copied, copying continues with the draft tokens,
        so that repetitive text is repeated.

        Returns:
            `count` draft tokens, and the number of tokens at the text's end that match the earlier
            occurrence, at most 16. [] and 0 if the last two tokens have not occurred before, or
            `count` is 0.
        """
        for length in _LENGTHS:
            places = self._places.get(tuple(self.tokens[-length:]), ())
            if not places or count < 1:
                continue
            alike, place = max((self._alike(place), place) for place in places)
            drafts = self.tokens[place : place + count]
            while len(drafts) < count:
                drafts.append(drafts[len(drafts) - (len(self.tokens) - place)])
            return drafts, alike
        return [], 0

    def _alike(self, place: int) -> int:
        """Returns how many tokens before index `place` equal the text's last tokens, at most 16."""
        tokens, end = self.tokens, len(self.tokens)
        limit = min(place, _MAX_MATCH)
        return next(
            (k for k in range(limit) if tokens[place - 1 - k] != tokens[end - 1 - k]), limit
        )

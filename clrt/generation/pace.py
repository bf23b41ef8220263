"""How many tokens are guessed at a time: as many as pay."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import takewhile

# Guesses at a time. With the token before them their numbers are mostly those that kernels like,
# and each other number is a shape to plan.
_COUNTS = (1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63)
MOST_GUESSES = _COUNTS[-1]
# What a further token of a step costs before it is known, of a step of one: measured on CPUs.
_USUAL_SHARE = 1 / 8
# New times count so much where they are longer; one that is shorter is taken as it is.
_WEIGHT = 0.2
# A time that is so much longer than expected was disturbed, and counts as no more.
_MOST_SURPRISE = 2.0
# Guesses that are remembered count so much less with each attempt, and with each one left out.
_MEMORY, _FADING = 0.8, 0.97
# What is believed of guesses that nothing is known of: their number, and how many were right.
_PRIOR, _PRIOR_RIGHT = 1.0, 0.7


@dataclass
class StepCosts:
    """Seconds of steps by their number of tokens, each with a row of outputs."""

    _seconds: dict[int, float] = field(default_factory=dict)
    _planned: set[int] = field(default_factory=set)

    def note(self, tokens: int, seconds: float) -> None:
        """Notes a step. The first one of its size does not count: it was planned."""
        if tokens not in self._planned:
            self._planned.add(tokens)
            return
        expected = self.of(tokens)
        seconds = min(seconds, _MOST_SURPRISE * expected) if expected else seconds
        known = self._seconds.get(tokens, seconds)
        self._seconds[tokens] = min(seconds, known + _WEIGHT * (seconds - known))

    def of(self, tokens: int) -> float:
        """What a step takes, between those that were measured; 0 where none was."""
        sizes = sorted(self._seconds)
        if not sizes:
            return 0.0
        at = bisect_left(sizes, tokens)
        if at == len(sizes):
            low = sizes[-1]
            share = _USUAL_SHARE / (1 + _USUAL_SHARE * (low - 1))
            return self._seconds[low] * (1 + share * (tokens - low))
        high = sizes[at]
        if at == 0:
            return self._seconds[high]
        low = sizes[at - 1]
        part = (tokens - low) / (high - low)
        return self._seconds[low] + part * (self._seconds[high] - self._seconds[low])


@dataclass
class Trust:
    """How often guesses of one kind are right, in one text.

    Attributes:
        share: Of the guesses whose forerunners were right.
    """

    _tried: float = 0.0
    _right: float = 0.0

    @property
    def share(self) -> float:
        return (self._right + _PRIOR * _PRIOR_RIGHT) / (self._tried + _PRIOR)

    def note(self, guessed: int, right: int) -> None:
        """Notes that of some guesses the first ones were right."""
        self._tried = self._tried * _MEMORY + min(right + 1, guessed)
        self._right = self._right * _MEMORY + right

    def pass_over(self) -> None:
        """Notes that none was made: what is known fades, so that it is tried again some time."""
        self._tried *= _FADING
        self._right *= _FADING

    def worth(self, count: int) -> float:
        """How many of so many guesses will be right."""
        share = self.share
        return sum(share**k for k in range(1, count + 1))


def best_count(
    trust: Trust, most: int, costs: StepCosts, tokens: int, texts: int, draft_s: float = 0.0
) -> int:
    """With how many guesses for a text a step gives the most tokens a second; 0 where with none.

    Args:
        most: That there may be.
        costs: Of steps.
        tokens: Of the step without them.
        texts: That the step gives a token to.
        draft_s: Seconds that it takes to make a guess.
    """
    plain = costs.of(tokens)
    if not plain:
        return 0
    found, best = 0, texts / plain
    for count in takewhile(lambda count: count <= most, _COUNTS):
        seconds = costs.of(tokens + count) + count * draft_s
        rate = (texts + trust.worth(count)) / seconds
        if rate > best:
            found, best = count, rate
    if not found:
        trust.pass_over()
    return found

"""How many tokens a step has: a round number, and as many guesses as pay."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import takewhile

# Steps of more tokens than this, or of more rows, have a multiple of it: each number has a plan.
_ROUNDED = 16
# Guesses at a time. With the token before them these are numbers that kernels like, and each other
# number is a further shape to plan. Numbers between them cost about as much as the next one.
_COUNTS = (1, 3, 7, 15, 31, 47, 63)
MOST_GUESSES = _COUNTS[-1]
# What a further token of a step costs before it is known, of a step of one: measured on CPUs.
_USUAL_SHARE = 1 / 8
# New times count so much where they are longer; one that is shorter is taken as it is.
_WEIGHT = 0.2
# A time that is so much longer than expected was disturbed, and counts as no more.
_MOST_SURPRISE = 2.0
# What is believed of guesses before any was made: how many are right.
_USUALLY_RIGHT = 0.7
# Of guesses in all texts more is remembered than in one.
_LONG_MEMORY, _SLOW_FADING = 0.97, 0.99
# So many times more tokens a second are worth guesses: what is known of times is not exact.
_LEAST_GAIN = 1.05
# Where no guesses pay, what they cost counts so much less the next time: their times may have been
# disturbed, and are measured again some time.
_EASING = 0.995


def bucket_size(count: int) -> int:
    """The size of a step, or of its outputs, that has room for so many rows."""
    return count if count <= _ROUNDED else -(-count // _ROUNDED) * _ROUNDED


@dataclass
class StepTimeModel:
    """Seconds of steps by their number of tokens, each with a row of outputs.

    Attributes:
        cost_discount: How much of what guesses cost counts.
    """

    cost_discount: float = 1.0
    _seconds: dict[int, float] = field(default_factory=dict)
    _planned: set[int] = field(default_factory=set)

    def note(self, tokens: int, seconds: float) -> None:
        """Notes a step. The first one of its size does not count: it was planned."""
        size = bucket_size(tokens)
        if size not in self._planned:
            self._planned.add(size)
            return
        expected = self.of(size)
        seconds = min(seconds, _MOST_SURPRISE * expected) if expected else seconds
        known = self._seconds.get(size, seconds)
        self._seconds[size] = min(seconds, known + _WEIGHT * (seconds - known))

    def of(self, tokens: int) -> float:
        """What a step takes, between those that were measured; 0 where none was."""
        size, sizes = bucket_size(tokens), sorted(self._seconds)
        if not sizes:
            return 0.0
        at = bisect_left(sizes, size)
        if at == len(sizes):
            low = sizes[-1]
            share = _USUAL_SHARE / (1 + _USUAL_SHARE * (low - 1))
            return self._seconds[low] * (1 + share * (size - low))
        high = sizes[at]
        if at == 0:
            return self._seconds[high]
        low = sizes[at - 1]
        part = (size - low) / (high - low)
        return self._seconds[low] + part * (self._seconds[high] - self._seconds[low])


@dataclass
class AcceptanceRate:
    """How often guesses of one kind are right.

    Attributes:
        prior: The same in all texts: what is believed of a text as long as little is known of it.
        memory, fading: What is remembered counts so much less with each attempt, and with each one
            left out.
    """

    prior: AcceptanceRate | None = None
    memory: float = 0.8
    fading: float = 0.97
    _tried: float = 0.0
    _right: float = 0.0

    @classmethod
    def of_all(cls) -> AcceptanceRate:
        """That of all texts."""
        return cls(None, _LONG_MEMORY, _SLOW_FADING)

    @property
    def share(self) -> float:
        """Of the guesses whose forerunners were right."""
        usual = _USUALLY_RIGHT if self.prior is None else self.prior.share
        return (self._right + usual) / (self._tried + 1)

    def note(self, guessed: int, right: int) -> None:
        """Notes that of some guesses the first ones were right."""
        self._tried = self._tried * self.memory + min(right + 1, guessed)
        self._right = self._right * self.memory + right
        if self.prior is not None:
            self.prior.note(guessed, right)

    def pass_over(self) -> None:
        """Notes that none was made: what is known fades, so that it is tried again some time."""
        self._tried *= self.fading
        self._right *= self.fading
        if self.prior is not None:
            self.prior.pass_over()

    def worth(self, count: int) -> float:
        """How many of so many guesses will be right."""
        share = self.share
        return sum(share**k for k in range(1, count + 1))


@dataclass
class DraftBudget:
    """The guesses of one step, for one text after the other.

    Attributes:
        costs: Of steps.
        tokens: Of the step so far, guesses included.
        expected: How many tokens texts get by it.
        draft_s: Seconds that the guesses take to be made.
    """

    costs: StepTimeModel
    tokens: int
    expected: float
    draft_s: float = 0.0

    def add(self, trust: AcceptanceRate, most: int, draft_s: float = 0.0) -> int:
        """Adds as many guesses for a text as give the most tokens a second; perhaps none.

        Args:
            most: That there may be.
            draft_s: Seconds that it takes to make one.

        Returns:
            Their number.
        """
        costs = self.costs
        if not costs.of(self.tokens):
            return 0
        before_s = costs.of(self.tokens) + self.draft_s
        found, best = 0, _LEAST_GAIN * self.expected / before_s
        for count in takewhile(lambda count: count <= most, _COUNTS):
            more_s = costs.of(self.tokens + count) + self.draft_s + count * draft_s - before_s
            rate = (self.expected + trust.worth(count)) / (before_s + costs.cost_discount * more_s)
            if rate > best:
                found, best = count, rate
        if found:
            costs.cost_discount = 1.0
            self.tokens += found
            self.expected += trust.worth(found)
            self.draft_s += found * draft_s
        else:
            costs.cost_discount *= _EASING
            trust.pass_over()
        return found

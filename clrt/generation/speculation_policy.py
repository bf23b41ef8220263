"""Step sizes: buckets of token counts, and the number of draft tokens that maximizes speed."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import field
from itertools import takewhile

from clrt.util.fast_dataclass import dataclass

# Steps with more tokens are padded to a multiple of this, because each step size has its own plan.
_BUCKET = 16
# Allowed numbers of draft tokens per step. Together with the token before them they are step sizes
# that suit kernels. Few sizes mean few plans, and a size in between takes about as long as the
# next.
_COUNTS = (1, 3, 7, 15, 31, 47, 63)
MAX_DRAFT_TOKENS = _COUNTS[-1]
# Initial cost of one extra token relative to a one-token step; measured on CPUs.
_INITIAL_TOKEN_COST = 1 / 8
# Weight of a new time in the moving average if it is longer; a shorter one replaces the average.
_NEW_SAMPLE_WEIGHT = 0.2
# Outlier clamp: a sample counts as at most this multiple of the expected time.
_MAX_OUTLIER = 2.0
# Prior acceptance rate, before any draft token was verified.
_PRIOR_ACCEPTANCE = 0.7
# Decay factors of the statistics over all texts: per attempt, and per step without an attempt. They
# are closer to 1 than the factors for a single text.
_PRIOR_MEMORY, _PRIOR_FADING = 0.97, 0.99
# Minimum speedup for which draft tokens are used: predicted times are not exact.
_MIN_SPEEDUP = 1.05
# Factor per step on the assumed cost of draft tokens while they do not pay off: its measurement may
# have been disturbed, so they are tried again after a while.
_DISCOUNT_DECAY = 0.995


def bucket_size(count: int) -> int:
    """Rounds a number of tokens or output rows up to a multiple of 16; up to 16 it is unchanged."""
    return count if count <= _BUCKET else -(-count // _BUCKET) * _BUCKET


@dataclass
class DecodeTimeModel:
    """Predicts the time of a decoder step from its number of tokens, by measured steps.

    Attributes:
        cost_discount: Factor from 0 to 1 by which `DraftBudget` scales the time of draft tokens.
    """

    cost_discount: float = 1.0
    _seconds: dict[int, float] = field(default_factory=dict)
    _planned: set[int] = field(default_factory=set)

    def note(self, tokens: int, seconds: float) -> None:
        """Records the time of a step. Ignores the first step of each size, which includes planning.

        Args:
            tokens: Number of tokens of the step.
            seconds: Duration of the step.
        """
        size = bucket_size(tokens)
        if size not in self._planned:
            self._planned.add(size)
            return
        expected = self.of(size)
        seconds = min(seconds, _MAX_OUTLIER * expected) if expected else seconds
        known = self._seconds.get(size, seconds)
        self._seconds[size] = min(seconds, known + _NEW_SAMPLE_WEIGHT * (seconds - known))

    def of(self, tokens: int) -> float:
        """Returns the predicted seconds of a step of `tokens` tokens; 0 if no step was measured."""
        size, sizes = bucket_size(tokens), sorted(self._seconds)
        if not sizes:
            return 0.0
        at = bisect_left(sizes, size)
        if at == len(sizes):
            low = sizes[-1]
            share = _INITIAL_TOKEN_COST / (1 + _INITIAL_TOKEN_COST * (low - 1))
            return self._seconds[low] * (1 + share * (size - low))
        high = sizes[at]
        if at == 0:
            return self._seconds[high]
        low = sizes[at - 1]
        part = (size - low) / (high - low)
        return self._seconds[low] + part * (self._seconds[high] - self._seconds[low])


@dataclass
class AcceptanceRate:
    """Acceptance rate of draft tokens of one kind; recent steps weigh more.

    Attributes:
        prior: Acceptance rate over all texts, the initial rate of a new text. None if this object
            is the rate over all texts.
        memory: Decay factor of the statistics per step with draft tokens.
        fading: Decay factor of the statistics per step without draft tokens.
    """

    prior: AcceptanceRate | None = None
    memory: float = 0.8
    fading: float = 0.97
    _tried: float = 0.0
    _right: float = 0.0

    @classmethod
    def of_all(cls) -> AcceptanceRate:
        """Creates the acceptance rate over all texts, the `prior` of each text's own rate.

        Its statistics decay more slowly than those of one text.
        """
        return cls(None, _PRIOR_MEMORY, _PRIOR_FADING)

    @property
    def share(self) -> float:
        """Estimated probability that a draft token is accepted, given that all before it are."""
        usual = _PRIOR_ACCEPTANCE if self.prior is None else self.prior.share
        return (self._right + usual) / (self._tried + 1)

    def note(self, guessed: int, right: int) -> None:
        """Records a step in which the first `right` of `guessed` draft tokens were accepted."""
        self._tried = self._tried * self.memory + min(right + 1, guessed)
        self._right = self._right * self.memory + right
        if self.prior is not None:
            self.prior.note(guessed, right)

    def pass_over(self) -> None:
        """Records a step without draft tokens: statistics decay, so that drafting is retried."""
        self._tried *= self.fading
        self._right *= self.fading
        if self.prior is not None:
            self.prior.pass_over()

    def worth(self, count: int) -> float:
        """Returns how many of `count` draft tokens are expected to be accepted."""
        share = self.share
        return sum(share**k for k in range(1, count + 1))


@dataclass
class DraftBudget:
    """Chooses the numbers of draft tokens for a decoder step, text by text.

    Attributes:
        costs: Predicts step time from the number of tokens.
        tokens: Number of tokens of the step, with the draft tokens chosen so far.
        expected: Expected number of tokens that the step generates, over all texts.
        draft_s: Seconds for making the draft tokens chosen so far.
    """

    costs: DecodeTimeModel
    tokens: int
    expected: float
    draft_s: float = 0.0

    def add(self, trust: AcceptanceRate, most: int, draft_s: float = 0.0) -> int:
        """Chooses, for one more text, the number of draft tokens that maximizes tokens per second.

        Args:
            trust: Acceptance rate of the text's draft tokens.
            most: Maximum number of draft tokens.
            draft_s: Seconds for making one draft token.

        Returns:
            Number of draft tokens; 0 if none raise the speed by 5%, or no step was measured yet.
        """
        costs = self.costs
        if not costs.of(self.tokens):
            return 0
        before_s = costs.of(self.tokens) + self.draft_s
        best_count, best_rate = 0, _MIN_SPEEDUP * self.expected / before_s
        for count in takewhile(lambda count: count <= most, _COUNTS):
            more_s = costs.of(self.tokens + count) + self.draft_s + count * draft_s - before_s
            rate = (self.expected + trust.worth(count)) / (before_s + costs.cost_discount * more_s)
            if rate > best_rate:
                best_count, best_rate = count, rate
        if best_count:
            costs.cost_discount = 1.0
            self.tokens += best_count
            self.expected += trust.worth(best_count)
            self.draft_s += best_count * draft_s
        else:
            costs.cost_discount *= _DISCOUNT_DECAY
            trust.pass_over()
        return best_count

"""Which token may follow in a window: what the logits of a model are changed by.

Source: openai/whisper, `whisper/decoding.py`; transformers' WhisperTimeStampLogitsProcessor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clrt.audio.wav import FloatArray

_NEVER = np.float32(-np.inf)


@dataclass(frozen=True, eq=False)
class WhisperLogitsProcessor:
    """Rules for the tokens of a window.

    Attributes:
        suppressed: Tokens that never come.
        first_suppressed: Those that do not come first.
        end: The token that ends a text; those below are text.
        first_time: The token of the window's start; those above are 0.02 s later each.
        timestamps: Whether there are times, which then come in pairs and do not go back.
        most_first_time: How many steps of time there may be before the first text; None for any.
    """

    suppressed: NDArray[np.int64]
    first_suppressed: NDArray[np.int64]
    end: int
    first_time: int
    timestamps: bool
    most_first_time: int | None = None

    def __call__(self, logits: FloatArray, made: Sequence[int]) -> FloatArray:
        """The logits, -inf where a token may not follow.

        Args:
            logits: float32 [vocabulary].
            made: The tokens of the window so far.
        """
        scores = finite(logits)
        scores[self.suppressed] = _NEVER
        if not made:
            scores[self.first_suppressed] = _NEVER
        if self.timestamps:
            self._keep_times(scores, made)
        return scores

    def _keep_times(self, scores: FloatArray, made: Sequence[int]) -> None:
        first = self.first_time
        scores[first - 1] = _NEVER  # the token that says that there are no times
        if not made:
            scores[:first] = _NEVER
            if self.most_first_time is not None:
                scores[first + self.most_first_time + 1 :] = _NEVER
            return
        after_time = made[-1] >= first
        opened = after_time and (len(made) < 2 or made[-2] >= first)
        if opened:
            scores[first:] = _NEVER
        elif after_time:
            scores[: self.end] = _NEVER
        last = next((t for t in reversed(made) if t >= first), None)
        if last is not None:  # the next part may begin when this one ends
            scores[first : last + (0 if after_time and not opened else 1)] = _NEVER
        times, texts = scores[first:], scores[:first]
        if times.size and _log_sum(times) > texts.max():
            scores[:first] = _NEVER


def finite(logits: FloatArray) -> FloatArray:
    """A copy without NaN, which counts as -inf, and without inf."""
    made: FloatArray = np.nan_to_num(logits, nan=-np.inf, neginf=-np.inf).astype(np.float32)
    return made


def log_probabilities(scores: FloatArray) -> FloatArray:
    """Logarithms of what softmax gives; -inf where no score is above it."""
    total = _log_sum(scores)
    return scores if total == -np.inf else np.asarray(scores - np.float32(total), np.float32)


def _log_sum(scores: FloatArray) -> float:
    """log(sum(exp(scores)))."""
    top = float(scores.max())
    if top == -np.inf:
        return top
    return top + float(np.log(np.exp(scores - np.float32(top)).sum(dtype=np.float64)))

"""Rules for the next token of a window: masks on the logits.

Source: openai/whisper, `whisper/decoding.py`; transformers' WhisperTimeStampLogitsProcessor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clrt.audio.wav import FloatArray
from clrt.util.fast_dataclass import dataclass

_NEVER = np.float32(-np.inf)


@dataclass(frozen=True, eq=False)
class WhisperLogitsProcessor:
    """Masks logits by Whisper's rules for the tokens that may follow in a window.

    Attributes:
        suppressed: Tokens that are never allowed.
        first_suppressed: Tokens that are not allowed as the first token of a window.
        end: End token; lower tokens are text.
        first_time: Timestamp token of the window's start; each higher token is 0.02 s later.
        timestamps: Whether timestamps are generated; they come in pairs and do not decrease.
        most_first_time: Maximum of a window's first timestamp, in steps of 0.02 s; None for no
            limit.
    """

    suppressed: NDArray[np.int64]
    first_suppressed: NDArray[np.int64]
    end: int
    first_time: int
    timestamps: bool
    most_first_time: int | None = None

    def __call__(self, logits: FloatArray, made: Sequence[int]) -> FloatArray:
        """Returns a copy of the logits with -inf for tokens that may not follow `made`.

        Args:
            logits: float32 `[vocabulary]`.
            made: Tokens generated in the window so far.
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
        scores[first - 1] = _NEVER  # the token for text without timestamps
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
        if last is not None:  # a segment may begin when the last one ends
            scores[first : last + (0 if after_time and not opened else 1)] = _NEVER
        times, texts = scores[first:], scores[:first]
        if times.size and _log_sum(times) > texts.max():
            scores[:first] = _NEVER


def finite(logits: FloatArray) -> FloatArray:
    """Returns a copy of logits with NaN replaced by -inf, and inf by the largest float32."""
    copied: FloatArray = np.nan_to_num(logits, nan=-np.inf, neginf=-np.inf).astype(np.float32)
    return copied


def log_probabilities(scores: FloatArray) -> FloatArray:
    """Returns log-softmax of the scores; unchanged if all are -inf."""
    total = _log_sum(scores)
    return scores if total == -np.inf else np.asarray(scores - np.float32(total), np.float32)


def _log_sum(scores: FloatArray) -> float:
    """Returns log(sum(exp(scores))) without overflow; -inf if all scores are -inf."""
    top = float(scores.max())
    if top == -np.inf:
        return top
    return top + float(np.log(np.exp(scores - np.float32(top)).sum(dtype=np.float64)))

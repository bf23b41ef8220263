"""NumPy reference of SampleTokens for one row, in float64."""

from __future__ import annotations

import numpy as np

from clrt.ir.op import Array
from clrt.ops.random.philox import uniform_at


def draw_row(
    logits: Array | None,
    settings: Array | None,
    limits: Array | None,
    history: Array | None,
    draw: Array | None,
    allowed: Array | None,
    bias_ids: Array | None,
    bias_values: Array | None,
) -> tuple[int, float] | None:
    """Returns the token drawn for one row of SampleTokens, and its log-probability.

    The arguments are one row of each input of SampleTokens; only `allowed`, `bias_ids` and
    `bias_values` may be None (omitted).

    Returns:
        Token and log-probability; None if no token is allowed.
    """
    assert logits is not None and settings is not None and limits is not None
    assert history is not None and draw is not None
    raw = _usable(logits)
    scores = raw.copy()
    if bias_ids is not None and bias_values is not None:
        for token, value in zip(bias_ids, bias_values, strict=True):
            if 0 <= token < len(scores):
                with np.errstate(invalid="ignore"):
                    scores[token] = _usable(scores[token] + value)
    if allowed is not None:
        bits = np.unpackbits(allowed.astype("<u4").view(np.uint8), bitorder="little")
        scores[bits[: len(scores)] == 0] = -np.inf
    scores = _penalised(scores, history[: max(int(limits[1]), 0)], settings)
    if not len(scores) or scores.max() == -np.inf:
        return None
    if settings[0] > 0:
        weights = kept_weights(scores, settings, int(limits[0]))
        key = int(limits[2]) & 0xFFFFFFFF | (int(limits[3]) & 0xFFFFFFFF) << 32
        sums = np.cumsum(weights)
        target = uniform_at(key, int(draw) & 0xFFFFFFFF) * sums[-1]
        token = min(int(np.searchsorted(sums, target, "right")), int(np.flatnonzero(weights)[-1]))
    else:
        token = int(np.argmax(scores))
    top = raw.max()
    with np.errstate(all="ignore"):
        return token, raw[token] - top - np.log(np.exp(raw - top).sum())


def kept_weights(scores: Array, settings: Array, top_k: int) -> Array:
    """Returns the unnormalized probability of each token; 0 if a cut-off excludes the token.

    The probability is exp((score - highest score) / temperature).

    Args:
        scores: Scores per token, after all penalties.
        settings: Row of `settings` of SampleTokens: temperature (positive), top_p, min_p,
            typical_p, …
        top_k: Number of best tokens to keep, and tokens with the score of the last of these; 0 or
            less keeps all.
    """
    temperature, top_p, min_p, typical_p = (float(x) for x in settings[:4])
    with np.errstate(all="ignore"):
        distances = (scores.max() - scores) / temperature
        weights: Array = np.exp(-distances)
    kept = scores > -np.inf
    if 0 < top_k < len(scores):
        kept &= scores >= np.sort(scores)[-top_k]
    if top_p < 1:
        order = np.argsort(np.where(kept, distances, np.inf), kind="stable")
        sums = np.cumsum(np.where(kept, weights, 0)[order])
        kept[order[np.searchsorted(sums, max(top_p, 0.0) * sums[-1]) + 1 :]] = False
    if min_p > 0:
        kept &= weights >= min(min_p, 1)
    weights[~kept] = 0
    if 0 < typical_p < 1:
        present = weights > 0
        centre = (weights[present] * distances[present]).sum() / weights.sum()
        off = np.where(kept, np.abs(distances - centre), np.inf)
        order = np.argsort(off, kind="stable")
        sums = np.cumsum(weights[order])
        weights[off > off[order[np.searchsorted(sums, typical_p * sums[-1])]]] = 0
    return weights


def _usable(values: Array) -> Array:
    """Rounds values to float32, and returns them as float64.

    NaN becomes -inf, inf the largest float32.
    """
    with np.errstate(all="ignore"):
        rounded = np.asarray(values, np.float32).astype(np.float64)
    largest = float(np.finfo(np.float32).max)
    return np.asarray(np.minimum(np.where(np.isnan(rounded), -np.inf, rounded), largest))


def _penalised(scores: Array, history: Array, settings: Array) -> Array:
    """Applies repetition, presence and frequency penalties to `scores`, in place; returns `scores`.

    Args:
        scores: Scores per token.
        history: Tokens so far, which begin with the prompt.
        settings: Row of `settings` of SampleTokens.
    """
    repetition, presence, frequency, prompt = (float(x) for x in settings[4:8])
    tokens = np.unique(history)
    tokens = tokens[(tokens >= 0) & (tokens < len(scores))]
    answered = history[np.arange(len(history)) >= prompt]
    counts = (answered[:, None] == tokens).sum(axis=0)
    penalised = scores[tokens]
    if repetition > 0:
        penalised = np.where(penalised > 0, penalised / repetition, penalised * repetition)
    off = np.where(counts > 0, presence + frequency * counts, 0)
    scores[tokens] = _usable(penalised - off)
    return scores

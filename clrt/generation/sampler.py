"""Inputs of the op SampleTokens, which chooses the next token of each sequence."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from clrt.generation.options import Sampling
from clrt.generation.token_rules import NextTokenRules
from clrt.util.fast_dataclass import dataclass

# All bits of a 32-bit word, the unit of token masks and seeds.
_WORD = (1 << 32) - 1


@dataclass(eq=False)
class TokenSampler:
    """How the next token of one sequence is chosen.

    Attributes:
        sampling: Options of the request.
        vocabulary: Number of logits.
        prompt: Number of prompt tokens, which presence and frequency penalties do not count.
        seed: Seed of the draws, combined with the position. A negative argument is replaced by the
            seed of `sampling`, or by a random seed if that is None.
        allowed: uint32 `[ceil(vocabulary / 32)]`: bit mask of allowed tokens; None for all.
        rules: Rules that ban, force or bias tokens depending on earlier tokens; None for none.
    """

    sampling: Sampling
    vocabulary: int
    prompt: int = 0
    seed: int = field(default=-1)
    allowed: np.ndarray[Any, np.dtype[np.uint32]] | None = None
    rules: NextTokenRules | None = None

    def __post_init__(self) -> None:
        if self.seed < 0:
            seed = self.sampling.seed
            self.seed = secrets.randbits(64) if seed is None else seed

    @property
    def has_history(self) -> bool:
        """Whether the op SampleTokens needs the sequence's earlier tokens, for penalties."""
        s = self.sampling
        return (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) != (1, 0, 0)

    @property
    def reads_text(self) -> bool:
        """Whether the choice of the next token depends on earlier tokens by penalties or rules."""
        return self.has_history or self.rules is not None

    @property
    def changes(self) -> bool:
        """Whether this sampler's inputs of the op SampleTokens may differ from step to step."""
        return self.reads_text or self.allowed is not None

    @property
    def settings(self) -> list[float]:
        """Row of input `settings` of the op SampleTokens: temperature, top_p and other options."""
        s = self.sampling
        penalties = (s.repetition_penalty, s.presence_penalty, s.frequency_penalty)
        return [s.temperature, s.top_p, s.min_p, s.typical_p, *penalties, self.prompt]


def sampler_inputs(
    samplers: Sequence[TokenSampler],
    texts: Sequence[Sequence[int] | np.ndarray[Any, Any]],
    vocabulary: int,
) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the inputs of the op SampleTokens by name, with one row per sampler.

    Args:
        samplers: One sampler per output row.
        texts: Earlier tokens of each sampler's sequence; () if the sampler does not read them.
        vocabulary: Number of logits.
    """
    rows, words = len(samplers), -(-vocabulary // 32)
    used = [t if s.has_history else () for s, t in zip(samplers, texts, strict=True)]
    biases = [_biases(s, t) for s, t in zip(samplers, texts, strict=True)]
    history = np.full((rows, _rounded(max(map(len, used), default=0))), -1, np.int32)
    bias_ids = np.full((rows, _rounded(max(map(len, biases), default=0))), -1, np.int32)
    bias_values = np.zeros(bias_ids.shape, np.float32)
    allowed = np.full((rows, words), _WORD, np.uint32)
    limits = np.zeros((rows, 4), np.uint32)
    for row, (sampler, tokens, bias) in enumerate(zip(samplers, used, biases, strict=True)):
        history[row, : len(tokens)] = tokens
        bias_ids[row, : len(bias)] = list(bias)
        bias_values[row, : len(bias)] = _narrow(list(bias.values()))
        if sampler.allowed is not None:
            allowed[row] = sampler.allowed
        if sampler.rules is not None:
            allowed[row] &= sampler.rules.allowed(texts[row], vocabulary)
        seed = sampler.seed
        limits[row] = sampler.sampling.top_k, len(tokens), seed & _WORD, seed >> 32 & _WORD
    return {
        "settings": _narrow([s.settings for s in samplers]).reshape(rows, 8),
        "limits": limits.view(np.int32),
        "history": history,
        "allowed": allowed,
        "bias_ids": bias_ids,
        "bias_values": bias_values,
    }


def _biases(
    sampler: TokenSampler, text: Sequence[int] | np.ndarray[Any, Any]
) -> Mapping[int, float]:
    """Returns the numbers to add to next-token logits by token id, from options and rules."""
    biases = sampler.sampling.logit_bias
    if sampler.rules is None:
        return biases
    rule_biases = sampler.rules.biases(text)
    return {t: biases.get(t, 0.0) + rule_biases.get(t, 0.0) for t in {**biases, **rule_biases}}


def _narrow(numbers: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Converts numbers to a float32 array; numbers beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return np.array(numbers, np.float32)


def _rounded(count: int) -> int:
    """Rounds a number of columns up to a power of two, to limit the number of input shapes."""
    return 1 << max(count - 1, 0).bit_length()

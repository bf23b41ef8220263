"""Rules that ban, force or bias the next token, as logits processors do.

Source: transformers, generation/logits_process.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.generation.options import Sampling

Tokens = NDArray[np.int64]
_DYNAMIC = ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens")
_STATIC = ("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias")


class _Sequences(NamedTuple):
    """Banned or biased token sequences, all of one length.

    If the text ends with all but the last token of a sequence, the last token's logit is biased.

    Attributes:
        before: All tokens but the last, int64 `[sequences, length - 1]`.
        last: Last token, int64 `[sequences]`.
        bias: Number added to the logit of `last`, float64 `[sequences]`; -inf bans the token.
    """

    before: Tokens
    last: Tokens
    bias: NDArray[np.float64]

    def matching(self, text: Tokens) -> NDArray[np.bool_]:
        """Returns, for each sequence, whether `text` ends with its `before`, bool `[sequences]`."""
        length = self.before.shape[1]
        if length > len(text):
            return np.zeros(len(self.last), np.bool_)
        return np.asarray((self.before == text[len(text) - length :]).all(axis=1))


class NextTokenRules:
    """Rules of `Sampling` that ban, force or bias the next token of one text.

    Attributes:
        sampling: Options that define the rules.

    Args:
        sampling: Options that define the rules.
        ends: Tokens that end the text.
        prompt: Prompt tokens.
        limit: Maximum number of generated tokens.
        source: Encoder input; None without an encoder.
    """

    def __init__(
        self,
        sampling: Sampling,
        ends: Iterable[int],
        prompt: Sequence[int],
        limit: int,
        source: NDArray[Any] | None = None,
    ) -> None:
        self.sampling = sampling
        self._ends = _tokens(ends)
        self._start, self._limit = len(prompt), limit
        read = prompt if source is None else source
        self._source = _tokens(read if source is None or source.ndim == 1 else ())

    @classmethod
    def of(
        cls,
        sampling: Sampling,
        ends: Iterable[int],
        prompt: Sequence[int],
        limit: int,
        source: NDArray[Any] | None = None,
    ) -> NextTokenRules | None:
        """Creates the rules of a text.

        Args:
            sampling: Options that define the rules.
            ends: Tokens that end the text.
            prompt: Prompt tokens.
            limit: Maximum number of generated tokens.
            source: Encoder input; None without an encoder.

        Returns:
            The rules; None if the options define none.
        """
        forced = sampling.forced_bos_token_id is not None or sampling.forced_eos_token_id != ()
        if not forced and not any(getattr(sampling, name) for name in (*_DYNAMIC, *_STATIC)):
            return None
        return cls(sampling, ends, prompt, limit, source)

    def allowed(self, text: Sequence[int] | NDArray[Any], vocabulary: int) -> NDArray[np.uint32]:
        """Returns a bit mask of the tokens that may follow a text.

        Args:
            text: Tokens of prompt and generated text so far.
            vocabulary: Number of logits.

        Returns:
            uint32 `[ceil(vocabulary / 32)]`; token t is bit `t % 32` of word `t // 32`.
        """
        bits = np.zeros(-(-vocabulary // 32) * 32, np.bool_)
        bits[:vocabulary] = self._allowed(_tokens(text), vocabulary)
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def biases(self, text: Sequence[int] | NDArray[Any]) -> dict[int, float]:
        """Returns the numbers that `sequence_bias` adds to logits after `text`, by token id."""
        biases: dict[int, float] = defaultdict(float)
        tokens = _tokens(text)
        for group in self._biased:
            matches = group.matching(tokens)
            for token, bias in zip(group.last[matches], group.bias[matches], strict=True):
                biases[int(token)] += float(bias)
        return dict(biases)

    def scores(self, logprobs: NDArray[np.float64], text: Sequence[int]) -> NDArray[np.float64]:
        """Applies the rules to next-token log-probabilities; returns them as scores for beams.

        Banned tokens get -inf. The scores are renormalized if `renormalize_logits` is set.

        Args:
            logprobs: Log-probabilities, float64 `[vocabulary]`; modified in place.
            text: Tokens of prompt and generated text so far.
        """
        for token, bias in self.biases(text).items():
            if token < len(logprobs):
                logprobs[token] += bias
        penalty = self.sampling.repetition_penalty
        if penalty != 1 and len(text):
            used = np.unique(_tokens(text))
            used = used[used < len(logprobs)]
            penalized = logprobs[used]
            logprobs[used] = np.where(penalized < 0, penalized * penalty, penalized / penalty)
        tokens = _tokens(text)
        forced = self._forced(tokens)
        if forced is not None:
            logprobs[_within(forced, len(logprobs))] = 0
        logprobs[~self._allowed(tokens, len(logprobs))] = -np.inf
        return normalised(logprobs) if self.sampling.renormalize_logits else logprobs

    def _allowed(self, text: Tokens, vocabulary: int) -> NDArray[np.bool_]:
        """Returns a mask of the tokens that may follow a text, bool `[vocabulary]`."""
        forced = self._forced(text)
        if forced is not None:
            allowed = np.zeros(vocabulary, np.bool_)
            allowed[_within(forced, vocabulary)] = True
        else:
            allowed = np.ones(vocabulary, np.bool_)
            for banned in self._banned(text):
                allowed[_within(banned, vocabulary)] = False
        for suppressed in self._suppressed(text):
            allowed[_within(suppressed, vocabulary)] = False
        return allowed

    def _forced(self, text: Tokens) -> Tokens | None:
        """Returns the one token that must follow a text, as int64 `[1]`; None if none is forced.

        Options can force the second token of a text (`forced_bos_token_id`), and its last token
        before the length limit (`forced_eos_token_id`).

        Args:
            text: Tokens of prompt and generated text so far.
        """
        options = self.sampling
        if options.forced_eos_token_id and len(text) == self._start + self._limit - 1:
            assert isinstance(options.forced_eos_token_id, tuple)
            # transformers scores all forced end tokens equally, so that the lowest id wins.
            return _tokens([min(options.forced_eos_token_id)])
        if options.forced_bos_token_id is not None and len(text) == 1:
            return _tokens([options.forced_bos_token_id])
        return None

    def _banned(self, text: Tokens) -> Iterable[Tokens]:
        """Yields arrays of tokens that may not follow a text.

        The rules concern repeated n-grams, bad words and the minimum length.
        """
        options = self.sampling
        for size, seen in (
            (options.no_repeat_ngram_size, text),
            (options.encoder_no_repeat_ngram_size, self._source),
        ):
            if size:
                yield following(text, seen, size)
        for group in self._bad:
            yield group.last[group.matching(text)]
        new = len(text) - self._start
        if len(text) < options.min_length or new < options.min_new_tokens:
            yield self._ends

    def _suppressed(self, text: Tokens) -> Iterable[Tokens]:
        """Yields arrays of tokens that options suppress always, or as first generated token."""
        options = self.sampling
        yield _tokens(options.suppress_tokens)
        begin = self._start
        if begin <= 1 and options.forced_bos_token_id is not None:
            begin += 1
        if len(text) == begin:
            yield _tokens(options.begin_suppress_tokens)

    @cached_property
    def _bad(self) -> list[_Sequences]:
        """Returns the sequences of `bad_words_ids` by length, without single end tokens."""
        ends = [[int(end)] for end in self._ends]
        words = [list(word) for word in self.sampling.bad_words_ids]
        return _grouped((word, -np.inf) for word in words if word not in ends)

    @cached_property
    def _biased(self) -> list[_Sequences]:
        return _grouped((list(ids), bias) for ids, bias in self.sampling.biased_sequences)


def new_tokens_limit(sampling: Sampling, prompt: int, context: int) -> int:
    """Returns the maximum number of generated tokens.

    Args:
        sampling: Options of the request.
        prompt: Number of prompt tokens.
        context: Maximum number of tokens of prompt and generated text.

    Raises:
        InputError: The prompt already has `max_length` tokens.
    """
    limit = min(sampling.max_new_tokens, max(context - prompt, 1))
    if not sampling.max_length:
        return limit
    if prompt >= sampling.max_length:
        raise InputError(
            f"The prompt has {prompt} tokens, and max_length allows {sampling.max_length} with the "
            "answer; give max_new_tokens, or a larger max_length."
        )
    return min(limit, sampling.max_length - prompt)


def following(text: Tokens, seen: Tokens, size: int) -> Tokens:
    """Returns the tokens that, appended to `text`, would repeat an n-gram of `seen`.

    Args:
        text: Tokens of a text, which may end with the first `size - 1` tokens of an n-gram.
        seen: Tokens that contain the n-grams.
        size: Length of the n-gram.
    """
    context = size - 1
    if len(text) < context or len(seen) < size:
        return np.zeros(0, np.int64)
    positions = np.arange(context, len(seen))
    for offset in range(1, size):
        positions = positions[seen[positions - offset] == text[len(text) - offset]]
    return seen[positions]


def normalised(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the log-softmax of logits, float64 `[vocabulary]`; unchanged if all are -inf."""
    top = logits.max(initial=-np.inf)
    if top == -np.inf:
        return logits
    shifted = logits - top
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def _grouped(sequences: Iterable[tuple[Sequence[int], float]]) -> list[_Sequences]:
    """Groups (token sequence, bias) pairs by the length of the sequence."""
    groups: dict[int, list[tuple[Sequence[int], float]]] = defaultdict(list)
    for sequence, bias in sequences:
        groups[len(sequence)].append((sequence, bias))
    grouped = []
    for length, group in groups.items():
        ids = np.array([ids for ids, _ in group], np.int64).reshape(len(group), length)
        grouped.append(_Sequences(ids[:, :-1], ids[:, -1], np.array([b for _, b in group])))
    return grouped


def _within(tokens: Tokens, vocabulary: int) -> Tokens:
    return tokens[(tokens >= 0) & (tokens < vocabulary)]


def _tokens(values: Iterable[int]) -> Tokens:
    if isinstance(values, np.ndarray):
        return values.astype(np.int64, copy=False)
    return np.fromiter(values, np.int64)

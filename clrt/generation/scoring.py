"""Log-likelihoods, perplexity and embeddings of texts by a language model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.generation.engine import CHUNK, DecoderEngine
from clrt.generation.forced_decoding import ForcedSequence, PositionRows, read_rows
from clrt.generation.model_spec import LanguageModel
from clrt.generation.options import Sampling, whole_number
from clrt.generation.prompts import encoded
from clrt.generation.sampler import TokenSampler
from clrt.generation.scheduler import Scheduler
from clrt.ir.symbolic_trace import clamp

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FloatArray = NDArray[np.float32]
Progress: TypeAlias = Callable[[int, int], object]
"""Callback with the number of finished tokens and of all tokens."""

# Maximum number of logits computed per step, which bounds memory.
_MAX_LOGITS = 16 << 20
_MIN_TOKENS = 16
# Maximum number of texts in an encoder batch.
_MAX_ENCODER_BATCH = 32
POOLINGS = ("mean", "last")
LLAMA_CPP = "llama.cpp"  # value of `compare` for llama.cpp's definition of perplexity


def log_likelihoods(
    scheduler: Scheduler,
    vocabulary: int,
    texts: Sequence[ForcedSequence],
    progress: Progress | None = None,
) -> list[FloatArray]:
    """Computes the log-probability of each token of texts, conditional on the tokens before it.

    Args:
        scheduler: Scheduler whose engine runs the steps.
        vocabulary: Number of logits.
        texts: Token sequences; only tokens after position `first` of each are scored.
        progress: Called with (number of finished tokens, number of all tokens); None for none.

    Returns:
        For each text, natural logarithms, float32 `[tokens - first - 1]`.

    Raises:
        InputError: A text is longer than the context.
        OutOfMemoryError: A text does not fit into the cache.
    """

    # The sampler allows only the text's next token, so the step returns the log-probability of that
    # token instead of all logits.
    def sampler(text: int, place: int) -> TokenSampler:
        token_sampler = TokenSampler(Sampling(), vocabulary, seed=0)
        token_sampler.allowed = np.zeros(-(-vocabulary // 32), np.uint32)
        token = texts[text].tokens[place + 1]
        token_sampler.allowed[token // 32] = 1 << token % 32
        return token_sampler

    logprobs = [np.zeros(max(len(t.tokens) - t.first - 1, 0), np.float32) for t in texts]
    wanted = [k for k, part in enumerate(logprobs) if len(part)]
    max_tokens = clamp(_MAX_LOGITS // vocabulary, _MIN_TOKENS, CHUNK)
    # The last token predicts nothing, but counts in the length of its text.
    inputs = [
        texts[k]._replace(tokens=texts[k].tokens[:-1], length=len(texts[k].tokens)) for k in wanted
    ]
    done, total = 0, sum(map(len, logprobs))

    def take(rows: PositionRows) -> None:
        nonlocal done
        at = rows.first - inputs[rows.text].first
        logprobs[wanted[rows.text]][at : at + len(rows.values)] = rows.values
        done += len(rows.values)
        if progress is not None:
            progress(done, total)

    read_rows(
        scheduler, inputs, "logprob", lambda k, place: sampler(wanted[k], place), take, max_tokens
    )
    return logprobs


def perplexity(
    scheduler: Scheduler,
    vocabulary: int,
    tokens: Sequence[int],
    stride: int | None,
    beginning: Sequence[int] = (),
    progress: Progress | None = None,
) -> float:
    """Returns the perplexity of a text: exp of the mean of its tokens' negative log-likelihood.

    The first token does not count. A text longer than the context is split into windows that start
    `stride` tokens apart; a token counts in the first window that contains it.

    Args:
        scheduler: Scheduler whose engine runs the steps.
        vocabulary: Number of logits.
        tokens: Tokens of the text.
        stride: Distance between starts of windows in tokens; None for half the context.
        beginning: Tokens that the tokenizer puts before each text, such as BOS. If the text begins
            with them, so does each window, and they do not count.
        progress: Called with (number of finished tokens, number of all tokens); None for none.

    Raises:
        InputError: There are too few tokens, or the stride or context is out of range.
    """
    context = scheduler.engine.context
    step = max(context // 2, 1) if stride is None else whole_number("stride", stride, context)
    if len(tokens) < 2:
        raise InputError("The text has fewer than two tokens; a perplexity needs at least two.")
    begins = [*beginning] if list(tokens[: len(beginning)]) == [*beginning] else []
    room = context - len(begins)
    if room < 1 or len(begins) == len(tokens):
        raise InputError(
            f"The text has no token after the {len(begins)} that start it in a context of "
            f"{context}; give a longer text or a larger context."
        )
    step = min(step, room)
    body = tokens[len(begins) :]
    windows, seen = [], 0
    for start in range(0, len(body), step):
        end = min(start + room, len(body))
        first = max(len(begins) + seen - start, 1) - 1
        windows.append(ForcedSequence([*begins, *body[start:end]], first))
        seen = end
        if end == len(body):
            break
    return _exp_of_mean(log_likelihoods(scheduler, vocabulary, windows, progress))


def llama_cpp_perplexity(
    scheduler: Scheduler,
    vocabulary: int,
    tokens: Sequence[int],
    beginning: Sequence[int] = (),
    progress: Progress | None = None,
) -> float:
    """Returns the perplexity of a text as llama.cpp's program llama-perplexity defines it.

    The text is split into consecutive windows as long as the engine's context; a shorter rest is
    dropped. Only tokens after position `context // 2` of each window count.

    Args:
        scheduler: Scheduler whose engine runs the steps.
        vocabulary: Number of logits.
        tokens: Tokens of the text.
        beginning: Tokens that the tokenizer puts before each text; the first of them, such as BOS,
            replaces the first token of each window.
        progress: Called with (number of finished tokens, number of all tokens); None for none.

    Raises:
        InputError: The text is shorter than two windows, or the context than four tokens.

    Source: llama.cpp, tools/perplexity/perplexity.cpp, `perplexity`.
    """
    context = scheduler.engine.context
    if context < 4 or len(tokens) < 2 * context:
        raise InputError(
            f"llama.cpp's perplexity needs two windows of the context, {2 * context} tokens, and a "
            f"context of 4 or more; the text has {len(tokens)}. Give a longer text or a smaller "
            "context."
        )
    windows = []
    for start in range(0, len(tokens) - context + 1, context):
        window = list(tokens[start : start + context])
        window[:1] = beginning[:1] or window[:1]
        windows.append(ForcedSequence(window, context // 2))
    return _exp_of_mean(log_likelihoods(scheduler, vocabulary, windows, progress))


def perplexity_as(
    compare: str | None,
    scheduler: Scheduler,
    vocabulary: int,
    tokens: Sequence[int],
    beginning: Sequence[int],
    stride: int | None,
    progress: Progress | None,
) -> float:
    """Returns the perplexity of a text by one of two definitions.

    Args:
        compare: `LLAMA_CPP` for `llama_cpp_perplexity`, None for `perplexity`.
        scheduler: Scheduler whose engine runs the steps.
        vocabulary: Number of logits.
        tokens: Tokens of the text.
        beginning: Tokens that the tokenizer puts before each text, such as BOS.
        stride: Distance between starts of windows in tokens. None for half the context; must be
            None for `LLAMA_CPP`.
        progress: Called with (number of finished tokens, number of all tokens); None for none.

    Raises:
        InputError: The text is too short, an argument is out of range, `compare` is unknown, or
            `LLAMA_CPP` is combined with a stride.
    """
    if compare is None:
        return perplexity(scheduler, vocabulary, tokens, stride, beginning, progress)
    if compare != LLAMA_CPP or stride is not None:
        raise InputError(
            f"compare is {compare!r}, stride {stride}; compare is {LLAMA_CPP!r}, whose windows "
            "have no stride, or None."
        )
    return llama_cpp_perplexity(scheduler, vocabulary, tokens, beginning, progress)


def beginning_of(tokenizer: Tokenizer) -> list[int]:
    """Returns the tokens that a tokenizer puts before each text, such as BOS; may be empty."""
    whole, plain = (encoded(tokenizer, "a", special) for special in (True, False))
    ends = (k for k in range(len(whole)) if plain and whole[k : k + len(plain)] == plain)
    return whole[: next(ends, 0)]


def _exp_of_mean(logprobs: Sequence[FloatArray]) -> float:
    return math.exp(-float(np.concatenate(logprobs).mean(dtype=np.float64)))


def embeddings(
    scheduler: Scheduler,
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    pooling: str,
) -> FloatArray:
    """Computes embeddings of texts: hidden states after the final norm, pooled over tokens.

    If the model has an encoder, the hidden states are the encoder's.

    Args:
        scheduler: Scheduler whose engine runs the steps.
        model: The language model.
        texts: Tokens of each text, one or more.
        pooling: "mean" over all tokens, or "last" for the last token.

    Returns:
        float32 `[texts, hidden]`.

    Raises:
        InputError: The pooling is unknown, or a text is longer than the context.
        OutOfMemoryError: A text does not fit into the cache.

    Numerics: means are summed in float64.
    """
    if pooling not in POOLINGS:
        raise InputError(f"pooling is {pooling!r}; expected one of {', '.join(POOLINGS)}.")
    if model.decoder.encoder is not None:
        return _encoder_embeddings(scheduler, texts, pooling)
    sums = np.zeros((len(texts), model.decoder.hidden), np.float64)
    inputs = [ForcedSequence(t, len(t) - 1 if pooling == "last" else 0) for t in texts]
    sampler = TokenSampler(Sampling(), model.vocabulary, seed=0)

    def take(rows: PositionRows) -> None:
        sums[rows.text] += rows.values.sum(axis=0, dtype=np.float64)

    read_rows(scheduler, inputs, "hidden", lambda k, place: sampler, take)
    if pooling == "mean":
        sums /= np.array([[len(tokens)] for tokens in texts]).reshape(-1, 1)
    return sums.astype(np.float32)


def _states_of(
    scheduler: Scheduler, texts: Sequence[Sequence[int]], engine: DecoderEngine
) -> list[FloatArray]:
    return scheduler.with_room(partial(engine.states, texts))


def _encoder_embeddings(
    scheduler: Scheduler, texts: Sequence[Sequence[int]], pooling: str
) -> FloatArray:
    """Computes embeddings of texts by the model's encoder, float32 `[texts, hidden]`.

    Args:
        scheduler: Scheduler whose engine runs the encoder.
        texts: Tokens of each text.
        pooling: "mean" over all tokens, or "last" for the last token.
    """
    vectors: list[FloatArray] = []
    # Between the batches the scheduler can run steps of generations.
    for first in range(0, len(texts), _MAX_ENCODER_BATCH):
        batch = texts[first : first + _MAX_ENCODER_BATCH]
        states = scheduler.exclusive(partial(_states_of, scheduler, batch))
        for rows in states:
            mean = rows.mean(axis=0, dtype=np.float64)
            vectors.append(rows[-1] if pooling == "last" else mean.astype(np.float32))
    return np.stack(vectors)

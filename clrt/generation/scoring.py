"""How likely texts are, and vectors of them, by a language model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.generation.engine import CHUNK, DecoderEngine
from clrt.generation.forced_decoding import GivenText, PlaceRows, read_rows
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
"""Is told how many tokens are done, and of how many."""

# Logits that are in memory at a time.
_MOST_LOGITS = 16 << 20
_FEWEST_TOKENS = 16
# Texts that an encoder reads at once.
_TEXTS_AT_ONCE = 32
POOLINGS = ("mean", "last")
LLAMA_CPP = "llama.cpp"  # whose definition of perplexity can be asked for


def log_likelihoods(
    scheduler: Scheduler,
    vocabulary: int,
    texts: Sequence[GivenText],
    progress: Progress | None = None,
) -> list[FloatArray]:
    """The log-probability of each token of texts behind those before it.

    Args:
        vocabulary: How many logits there are.
        texts: Of each, those of the tokens behind its first place are wanted.
        progress: Is told how many there are so far.

    Returns:
        float32 `[tokens - first - 1]` of each.

    Raises:
        InputError, OutOfMemoryError: As `read_rows`.
    """

    # Of all tokens only the right one is allowed: its log-probability comes, and no logits do.
    def sampler(text: int, place: int) -> TokenSampler:
        made = TokenSampler(Sampling(), vocabulary, seed=0)
        made.allowed = np.zeros(-(-vocabulary // 32), np.uint32)
        token = texts[text].tokens[place + 1]
        made.allowed[token // 32] = 1 << token % 32
        return made

    found = [np.zeros(max(len(t.tokens) - t.first - 1, 0), np.float32) for t in texts]
    wanted = [k for k, part in enumerate(found) if len(part)]
    most = clamp(_MOST_LOGITS // vocabulary, _FEWEST_TOKENS, CHUNK)
    # Nothing follows the last token, which still counts in the length of its text.
    given = [
        texts[k]._replace(tokens=texts[k].tokens[:-1], length=len(texts[k].tokens)) for k in wanted
    ]
    done, total = 0, sum(map(len, found))

    def take(rows: PlaceRows) -> None:
        nonlocal done
        at = rows.first - given[rows.text].first
        found[wanted[rows.text]][at : at + len(rows.values)] = rows.values
        done += len(rows.values)
        if progress is not None:
            progress(done, total)

    read_rows(scheduler, given, "logprob", lambda k, place: sampler(wanted[k], place), take, most)
    return found


def perplexity(
    scheduler: Scheduler,
    vocabulary: int,
    tokens: Sequence[int],
    stride: int | None,
    beginning: Sequence[int] = (),
    progress: Progress | None = None,
) -> float:
    """exp of the mean negative log-likelihood of the tokens behind the first one.

    A text longer than the context is read in windows, each `stride` tokens behind the one before;
    a token counts in the first window that has it.

    Args:
        beginning: Tokens that the tokenizer puts in front of each text, such as BOS. If the text
            begins with them, each window does, and none of them counts.

    Raises:
        InputError: There are fewer than two tokens, or the stride is out of range.
    """
    context = scheduler.engine.context
    step = max(context // 2, 1) if stride is None else whole_number("stride", stride, context)
    if len(tokens) < 2:
        raise InputError("The text has fewer than two tokens; a perplexity needs at least two.")
    begins = [*beginning] if list(tokens[: len(beginning)]) == [*beginning] else []
    room = context - len(begins)
    if room < 1 or len(begins) == len(tokens):
        raise InputError(
            f"The text has no token behind the {len(begins)} of its beginning in a context of "
            f"{context}; give a longer text or a larger context."
        )
    step = min(step, room)
    body = tokens[len(begins) :]
    windows, seen = [], 0
    for start in range(0, len(body), step):
        end = min(start + room, len(body))
        first = max(len(begins) + seen - start, 1) - 1
        windows.append(GivenText([*begins, *body[start:end]], first))
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
    """The perplexity that llama.cpp's llama-perplexity prints.

    The text is cut into windows of the context, one behind the other; what is left at its end does
    not count. If the tokenizer begins texts with a token, BOS, it takes the place of the first
    token of each window. Tokens behind place `context // 2` of each window count.

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
        windows.append(GivenText(window, context // 2))
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
    """`llama_cpp_perplexity` if `compare` is its name, `perplexity` if it is None.

    Raises:
        InputError: As these, or `compare` is anything else, or has a stride.
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
    """Tokens that a tokenizer puts in front of each text; none if it puts none there."""
    whole, plain = (encoded(tokenizer, "a", special) for special in (True, False))
    ends = (k for k in range(len(whole)) if plain and whole[k : k + len(plain)] == plain)
    return whole[: next(ends, 0)]


def _exp_of_mean(found: Sequence[FloatArray]) -> float:
    return math.exp(-float(np.concatenate(found).mean(dtype=np.float64)))


def embeddings(
    scheduler: Scheduler,
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    pooling: str,
) -> FloatArray:
    """The last hidden states of texts, behind the last norm: their mean, or that of the last token.

    Those of the encoder, if the model has one.

    Args:
        texts: Tokens of each, one or more.
        pooling: Of `POOLINGS`.

    Returns:
        float32 `[texts, hidden]`.

    Raises:
        InputError: The pooling is unknown.
        InputError, OutOfMemoryError: As `read_rows`.

    Numerics: means are sums of float64.
    """
    if pooling not in POOLINGS:
        raise InputError(f"pooling is {pooling!r}; it is one of {', '.join(POOLINGS)}.")
    if model.decoder.encoder is not None:
        return _source_embeddings(scheduler, texts, pooling)
    sums = np.zeros((len(texts), model.decoder.hidden), np.float64)
    given = [GivenText(t, len(t) - 1 if pooling == "last" else 0) for t in texts]
    sampler = TokenSampler(Sampling(), model.vocabulary, seed=0)

    def take(rows: PlaceRows) -> None:
        sums[rows.text] += rows.values.sum(axis=0, dtype=np.float64)

    read_rows(scheduler, given, "hidden", lambda k, place: sampler, take)
    if pooling == "mean":
        sums /= np.array([[len(tokens)] for tokens in texts]).reshape(-1, 1)
    return sums.astype(np.float32)


def _states_of(
    scheduler: Scheduler, texts: Sequence[Sequence[int]], engine: DecoderEngine
) -> list[FloatArray]:
    return scheduler.with_room(partial(engine.states, texts))


def _source_embeddings(
    scheduler: Scheduler, texts: Sequence[Sequence[int]], pooling: str
) -> FloatArray:
    """`embeddings` by an encoder."""
    found: list[FloatArray] = []
    # Answers take their turns between the runs.
    for first in range(0, len(texts), _TEXTS_AT_ONCE):
        batch = texts[first : first + _TEXTS_AT_ONCE]
        states = scheduler.exclusive(partial(_states_of, scheduler, batch))
        for rows in states:
            mean = rows.mean(axis=0, dtype=np.float64)
            found.append(rows[-1] if pooling == "last" else mean.astype(np.float32))
    return np.stack(found)

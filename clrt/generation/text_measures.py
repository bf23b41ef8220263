"""Scores, perplexity and embeddings: methods of a text generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clrt.generation.model_spec import LanguageModel
from clrt.generation.prompts import Prompt, several
from clrt.generation.request import GenerateRequest, RequestReader
from clrt.generation.scheduler import Scheduler
from clrt.generation.scoring import (
    FloatArray,
    Progress,
    beginning_of,
    embeddings,
    log_likelihoods,
    perplexity_as,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TextMeasures:
    """Methods of `TextGenerator` that score or embed existing texts."""

    _model: LanguageModel
    _requests: RequestReader
    _scheduler: Scheduler

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the model, a `tokenizers.Tokenizer`."""
        return self._model.tokenizer

    def score(
        self, texts: Prompt | Sequence[Prompt], sources: Prompt | Sequence[Prompt] | None = None
    ) -> Any:
        """Computes the log-probability of each token of texts.

        Args:
            texts: A string, tokens or the messages of a chat; or a list of these.
            sources: Prompts that the encoder reads: one prompt for all texts, or a list of one for
                each text; None for a decoder-only model.

        Returns:
            Log-probability of each token, conditional on the tokens before it. The array is float32
            `[tokens - 1]`, without the first token; with an encoder `[tokens]`, with all tokens. A
            list of arrays for a list of texts.

        Raises:
            InputError: A text is longer than the context, or sources do not fit the texts.
            OutOfMemoryError: A text does not fit into the cache.
        """
        inputs = self._requests.texts(texts, sources)
        logprobs = log_likelihoods(self._scheduler, self._model.vocabulary, inputs)
        return as_asked(logprobs, texts)

    def perplexity(
        self,
        text: Prompt,
        stride: int | None = None,
        progress: Progress | None = None,
        *,
        compare: str | None = None,
    ) -> float:
        """Returns the perplexity of a text: exp of the mean of its tokens' negative `score`.

        Args:
            text: A string, tokens or the messages of a chat.
            stride: A text longer than the context is read in windows that start `stride` tokens
                apart; None for half the context. Each window begins with the tokens that the
                tokenizer adds, such as BOS.
            progress: Called with (number of finished tokens, number of all tokens); None for none.
            compare: "llama.cpp" for the definition of llama-perplexity: the text is split into
                consecutive windows, and only the second half of each window counts. The context
                corresponds to llama-perplexity's option `-c`. None for windows `stride` tokens
                apart.

        Raises:
            InputError: The text has fewer than two tokens, the stride is out of range, or `compare`
                is unknown, or needs a longer text.
            OutOfMemoryError: The text does not fit into the cache.
            UnsupportedError: The model has an encoder.
        """
        tokens = self._requests.continued(text, "`perplexity`")
        args = self._scheduler, self._model.vocabulary, tokens, beginning_of(self.tokenizer)
        return perplexity_as(compare, *args, stride, progress)

    def embed(self, texts: Prompt | Sequence[Prompt], pooling: str = "mean") -> FloatArray:
        """Computes embeddings of texts from the last hidden states of the encoder, or the decoder.

        Args:
            texts: A string, tokens or the messages of a chat; or a list of these.
            pooling: "mean" over all tokens, or "last" for the last token.

        Returns:
            float32 `[hidden]`; `[texts, hidden]` for several texts. Not normalized.

        Raises:
            InputError: A text is longer than the context, or the pooling is unknown.
            OutOfMemoryError: A text does not fit into the cache.
        """
        tokens = self._requests.prompts(texts, GenerateRequest(self._model.sampling))
        vectors = embeddings(self._scheduler, self._model, tokens, pooling)
        return vectors if several(texts) is not None else vectors[0]


def as_asked(found: Any, prompt: Prompt | Sequence[Prompt]) -> Any:
    """Returns `found[0]` if `prompt` is a single prompt with one result; else the list `found`."""
    return found[0] if len(found) == 1 and several(prompt) is None else found

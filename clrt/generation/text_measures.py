"""How likely texts are by a language model, and vectors of them: methods of a text generator."""

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
    """What a text generator says of texts that are given."""

    _model: LanguageModel
    _requests: RequestReader
    _scheduler: Scheduler

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, of the library tokenizers."""
        return self._model.tokenizer

    def score(
        self, texts: Prompt | Sequence[Prompt], sources: Prompt | Sequence[Prompt] | None = None
    ) -> Any:
        """How likely the tokens of texts are.

        Args:
            texts: As the prompts of `generate`.
            sources: What an encoder reads: a prompt for all texts, or one for each.

        Returns:
            The log-probability of each token behind those before it, without the first one:
            float32 `[tokens - 1]`, with an encoder of all `[tokens]`; a list for several texts.

        Raises:
            InputError: A text is longer than the context, or sources do not fit the texts.
            OutOfMemoryError: The cache has no room.
        """
        given = self._requests.texts(texts, sources)
        found = log_likelihoods(self._scheduler, self._model.vocabulary, given)
        return as_asked(found, texts)

    def perplexity(
        self,
        text: Prompt,
        stride: int | None = None,
        progress: Progress | None = None,
        *,
        compare: str | None = None,
    ) -> float:
        """How much a text surprises the model: exp of the mean of its tokens' `-score`.

        Args:
            stride: A text longer than the context is read in windows, each so many tokens behind
                the one before; None for half of the context. Each begins with what the tokenizer
                begins texts with, such as BOS.
            progress: Is told how many tokens are done, and of how many.
            compare: "llama.cpp" for the definition of llama-perplexity: windows one behind the
                other, of which the second halves count; the context here is `-c` there.

        Raises:
            InputError: The text has fewer than two tokens, the stride is out of range, or
                `compare` is unknown, or needs a longer text.
            OutOfMemoryError: The cache has no room.
            UnsupportedError: The model has an encoder.
        """
        tokens = self._requests.continued(text, "`perplexity`")
        given = self._scheduler, self._model.vocabulary, tokens, beginning_of(self.tokenizer)
        return perplexity_as(compare, *given, stride, progress)

    def embed(self, texts: Prompt | Sequence[Prompt], pooling: str = "mean") -> FloatArray:
        """Vectors of texts: the model's last hidden states, those of its encoder if it has one.

        Args:
            texts: As the prompts of `generate`.
            pooling: "mean" of all tokens, or that of the "last" one.

        Returns:
            float32 `[hidden]`; `[texts, hidden]` for several texts. They have not unit length.

        Raises:
            InputError: A text is longer than the context, or the pooling is unknown.
            OutOfMemoryError: The cache has no room.
        """
        tokens = self._requests.prompts(texts, GenerateRequest(self._model.sampling))
        found = embeddings(self._scheduler, self._model, tokens, pooling)
        return found if several(texts) is not None else found[0]


def as_asked(found: Any, prompt: Prompt | Sequence[Prompt]) -> Any:
    """What a call gives: all that was found, or the one thing for one prompt."""
    return found[0] if len(found) == 1 and several(prompt) is None else found

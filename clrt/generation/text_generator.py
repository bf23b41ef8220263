"""Text from language models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clrt.errors import InputError
from clrt.files import expanded
from clrt.generation.detokenize import TextStream
from clrt.generation.engine import Engine
from clrt.generation.language_model import read_language_model
from clrt.generation.options import Sampling
from clrt.generation.sampler import TokenSampler
from clrt.generation.scheduler import Continuation, Scheduler
from clrt.generation.stops import StopMatcher
from clrt.runtime.devices import DeviceInfo


class TextGenerator:
    """A language model with its tokenizer; its cache stays on the device.

    `generate` and `stream` may be called from several threads: their texts then run together. What
    prompts begin with alike is computed once.

    Args:
        source: A Hugging Face folder with config.json, safetensors and tokenizer.json; or a GGUF
            file, or a folder with one GGUF model.
        device: As in `clrt.load`.
        context: The most tokens of a text with its prompt; by default what the model has.
        cache: How the cache holds keys and values: "float32", or "float16" for half the memory.
        sequences: How many texts run at a time; more wait.
        cache_dir, memory_limit: As in `clrt.load`.

    Raises:
        ModelError: A file is missing or damaged.
        UnsupportedError: The model is of a family that clrt does not know.
        DeviceError: The device asked for is absent.
        InputError: An option has no valid value.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        device: str | int | DeviceInfo | None = None,
        context: int | None = None,
        cache: str = "float32",
        sequences: int = 16,
        cache_dir: str | Path | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self._model = read_language_model(expanded(Path(source)), context, cache)
        self._engine = Engine(
            self._model.graph,
            self._model.context,
            self._model.vocabulary,
            sequences=sequences,
            device=device,
            cache_dir=cache_dir,
            memory_limit=memory_limit,
        )
        self._scheduler = Scheduler(self._engine)

    def generate(self, prompt: str | Sequence[int], **options: Any) -> str:
        """The text that follows a prompt.

        Args:
            prompt: A text, or tokens.
            options: Fields of `Sampling`; what is left out is as the model's files propose.

        Raises:
            InputError: An option or the prompt has no valid value.
            OutOfMemoryError: The cache has no room.
        """
        return "".join(self.stream(prompt, **options))

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Iterator[str]:
        """The same, piece by piece as it comes. Closing it ends the text.

        Raises:
            ClrtError: As `generate`.
        """
        sampling = self._sampling(options)
        request = self._request(prompt, sampling)
        self._scheduler.add(request)
        return self._pieces(request, sampling)

    def _pieces(self, request: Continuation, sampling: Sampling) -> Iterator[str]:
        text = TextStream(self._model.tokenizer)
        stops = StopMatcher(sampling.stop, request.ends, sampling.include_stop)
        for token in self._scheduler.tokens(request):
            piece = stops.push(text.push(token), token)
            if piece:
                yield piece
            if stops.matched is not None:
                self._scheduler.end(request, "stop")
                return
        rest = stops.push(text.finish()) + stops.finish()
        if rest:
            yield rest

    def _sampling(self, options: dict[str, Any]) -> Sampling:
        try:
            return replace(self._model.sampling, **options)
        except TypeError as error:
            raise InputError(f"{error}; see clrt.generation.Sampling for what there is.") from error

    def _request(self, prompt: str | Sequence[int], sampling: Sampling) -> Continuation:
        tokens = self._tokens(prompt)
        sampler = TokenSampler(sampling, len(tokens))
        return Continuation(tokens, sampler, sampling.max_new_tokens, self._model.ends)

    def _tokens(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            return list(self._model.tokenizer.encode(prompt).ids)
        tokens = list(prompt)
        for token in tokens:
            if not 0 <= token < self._model.vocabulary:
                raise InputError(
                    f"The prompt has token {token!r}; there are 0 to {self._model.vocabulary - 1}."
                )
        return tokens

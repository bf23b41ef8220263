"""Text from language models."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from clrt.errors import InputError
from clrt.generation.adapters import Adapters, named_adapters
from clrt.generation.cache_file import compute_pages, read_cache, write_cache
from clrt.generation.chat import Chat
from clrt.generation.draft_model import open_drafter
from clrt.generation.engine import DecoderEngine
from clrt.generation.generation_state import GenerationState
from clrt.generation.model_reader import read_language_model
from clrt.generation.options import whole_number
from clrt.generation.prompts import Prompt, tokens_of
from clrt.generation.request import GenerateRequest, RequestReader
from clrt.generation.result import GeneratedText
from clrt.generation.scheduler import Scheduler
from clrt.generation.streaming import Ending, GeneratedStream
from clrt.generation.text_measures import TextMeasures, as_asked
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.files import expanded

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from clrt.generation.async_streaming import AsyncGeneratedStream
    from clrt.generation.request import GenerateOptions

_MOST_SEQUENCES = 1 << 16


class TextGenerator(TextMeasures):
    """A language model with its tokenizer; its cache stays on the device.

    All methods may be called from several threads: their texts then run together. What prompts
    begin with alike is computed once. As a context manager it frees the device memory at the end.

    Args:
        source: A Hugging Face folder with config.json, safetensors and tokenizer.json; a GGUF file,
            or a folder with one GGUF model; or an ONNX file that takes past keys and values, as
            onnxruntime-genai's builder and optimum write them, or the folder of one.
        draft: A smaller model with the same tokens, which guesses ahead: texts are the same, and
            come sooner where it is often right. Its cache is as the model's.
        device: As in `clrt.load`.
        context: The most tokens of a text with its prompt, with an encoder of each; by default what
            the model was made for. More is allowed, but for models with a table of places.
        cache: How the cache holds keys and values: "float32", "float16" for half the memory, or
            "int8" for 0.27 of it.
        lora: LoRA adapters, which are merged into the weights: folders of Hugging Face's peft, or
            llama.cpp's GGUF files; a pair of a path and a factor for a share of one. Several are
            added up.
        sequences: How many texts run at a time; more wait.
        cache_dir: As in `clrt.load`.
        memory_limit: As in `clrt.load`; a draft model has as much again.

    Raises:
        ModelError: A file is missing or damaged, or an adapter is of another model.
        UnsupportedError: The model is of a family that clrt does not know, or takes no adapters, or
            tokenizers is not installed.
        DeviceError: The device asked for is absent.
        InputError: An option has no valid value, or the draft model has other tokens.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        draft: str | Path | None = None,
        device: str | int | DeviceInfo | None = None,
        context: int | None = None,
        cache: str = "float32",
        lora: Adapters = (),
        sequences: int = 16,
        cache_dir: str | Path | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        started = time.perf_counter()
        sequences = whole_number("sequences", sequences, _MOST_SEQUENCES)
        if not isinstance(source, str | Path):
            raise InputError(f"The source is {source!r}; it is the path of a model folder.")
        named = named_adapters(lora)
        self._model = read_language_model(expanded(Path(source)), context, cache, named)
        options = dict[str, Any](
            sequences=sequences, device=device, cache_dir=cache_dir, memory_limit=memory_limit
        )
        drafter = None if draft is None else open_drafter(draft, self._model, cache, **options)
        decoder = self._model.decoder
        options |= dict(encoder=decoder.encoder, long_beyond=decoder.long_beyond)
        engine = DecoderEngine(self._model.graph, self._model.context, **options)
        self.device: DeviceInfo = engine.model.device
        self._scheduler = Scheduler(engine, sequences, drafter)
        self._requests = RequestReader(self._model, drafts=drafter is not None)
        self._lock = RLock()
        self._workers: ThreadPoolExecutor | None = None
        self._load_s = time.perf_counter() - started

    @property
    def context(self) -> int:
        """The most tokens of a text with its prompt."""
        return self._model.context

    def generate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[GenerateOptions]
    ) -> Any:
        """The text that follows a prompt, or those that follow several.

        Args:
            prompt: A text; the messages of a chat; tokens; or a list of prompts, which run
                together.
            options: What is left out is as the model's files propose.

        Returns:
            A `GeneratedText`. A list of them for a list of prompts, or where
            `num_return_sequences` is above 1: then those of each prompt one behind the other.

        Raises:
            InputError: An option or a prompt has no valid value.
            OutOfMemoryError: The cache has no room for one of the texts alone.
        """
        request = self._requests.read(options)
        prompts = self._requests.prompts(prompt, request)
        if request.sampling.num_beams > 1:
            searches = self._requests.searches(self._scheduler, prompts, request)
            found = [text for search in searches for text in search.run()]
        else:
            found = self._together(prompts, request)
        return as_asked(found, prompt)

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> GeneratedStream:
        """The text that follows a prompt, piece by piece as it comes.

        Closing the stream ends the text; its `result` is a `GeneratedText`.

        Raises:
            ClrtError: As `generate`.
        """
        request = self._requests.read(options, "stream")
        return self._stream(tokens_of(self._model, prompt, request.chat), request)

    async def agenerate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[GenerateOptions]
    ) -> Any:
        """`generate`, while the event loop goes on. A task that is cancelled ends its texts.

        Raises:
            ClrtError: As `generate`.
        """
        from clrt.generation.async_streaming import finish_all, search_all

        request = self._requests.read(options)
        prompts = self._requests.prompts(prompt, request)
        if request.sampling.num_beams > 1:
            found = await search_all(self._requests.searches(self._scheduler, prompts, request))
        else:
            answers = [a for tokens in prompts for a in self._requests.answers(tokens, request)]
            streams = [self._astream(answer) for answer in answers]
            self._scheduler.add(answers)
            found = await finish_all(streams)
        return as_asked(found, prompt)

    def astream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncGeneratedStream:
        """`stream` for `async for`, while the event loop goes on.

        Raises:
            ClrtError: As `generate`.
        """
        request = self._requests.read(options, "astream")
        tokens = tokens_of(self._model, prompt, request.chat)
        (answer,) = self._requests.answers(tokens, request)
        stream = self._astream(answer)
        self._scheduler.add([answer])
        return stream

    def chat(self, system: str | None = None, **options: Unpack[GenerateOptions]) -> Chat:
        """A chat, whose turns reuse what the cache has of those before.

        Args:
            system: Its first message; None for none.
            options: As `generate`, for all turns.

        Raises:
            InputError: An option has no valid value, or the model has no chat template.
        """
        request = self._requests.read(options, "chat")
        self._model.chat_template  # noqa: B018  an error comes now, and not at the first turn
        return Chat(self, system, request)

    def save_cache(self, path: str | Path, prompt: Prompt) -> int:
        """Writes what the cache has of a prompt, computed before if need be.

        Returns:
            How many tokens of its beginning are in the file: whole pages of them.

        Raises:
            InputError: The prompt is too short or too long, or the file cannot be written.
            OutOfMemoryError: The cache has no room.
            UnsupportedError: The model has an encoder.
        """
        tokens = self._requests.continued(prompt, "`save_cache`")
        compute = partial(compute_pages, self._scheduler, tokens)
        pages, start = self._scheduler.exclusive(lambda engine: compute())
        return write_cache(expanded(path), self._model.fingerprint, tokens, pages, start)

    def load_cache(self, path: str | Path) -> int:
        """Takes in a file of `save_cache`: texts that begin with its prompt do not compute it.

        It stays until its room is needed.

        Returns:
            How many tokens it has.

        Raises:
            ModelError: The file is damaged, or is of another model.
            OutOfMemoryError: The cache has no room.
            UnsupportedError: The model has an encoder.
        """
        self._model.check_decoder("`load_cache`")

        def restore(engine: DecoderEngine) -> int:
            like = engine.cache.read(())
            tokens, pages, start = read_cache(expanded(path), self._model.fingerprint, like)
            self._scheduler.with_room(partial(engine.cache.restore, tokens, pages, start))
            return len(tokens)

        return self._scheduler.exclusive(restore)

    def close(self) -> None:
        """Ends all texts and frees the device memory; the generator cannot be used afterwards."""
        self._scheduler.close()
        with self._lock:
            if self._workers is not None:
                self._workers.shutdown(wait=False)

    def __enter__(self) -> TextGenerator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        model = self._model
        about = f"{model.decoder.family}, context {model.context}"
        return f"<clrt.TextGenerator '{model.name}' ({about}) on {self.device}>"

    def _together(
        self, prompts: Sequence[Sequence[int]], request: GenerateRequest
    ) -> list[GeneratedText]:
        """The answers to prompts, which run together."""
        answers = [a for tokens in prompts for a in self._requests.answers(tokens, request)]
        streams = [GeneratedStream(self._scheduler, a, self._finish) for a in answers]
        try:
            self._scheduler.add(answers)
            return [stream.result for stream in streams]
        finally:
            for stream in streams:
                stream.close()

    def _stream(
        self, tokens: Sequence[int], request: GenerateRequest, ending: Ending | None = None
    ) -> GeneratedStream:
        (answer,) = self._requests.answers(tokens, request)
        stream = GeneratedStream(self._scheduler, answer, self._finish, ending)
        self._scheduler.add([answer])
        return stream

    def _astream(self, answer: GenerationState) -> AsyncGeneratedStream:
        from clrt.generation.async_streaming import AsyncGeneratedStream

        with self._lock:
            if self._workers is None:
                self._workers = ThreadPoolExecutor(1, "clrt-generate")
        return AsyncGeneratedStream(self._scheduler, answer, self._finish, self._workers)

    def _finish(self, answer: GenerationState) -> GeneratedText:
        """What has come of an answer. The first one has waited for the model."""
        load_s, self._load_s = self._load_s, 0.0
        return answer.result(load_s)

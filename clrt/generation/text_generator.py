"""Text generation by language models."""

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
from clrt.generation.open_model import open_language_model
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

# Maximum number of sequences that run at once.
_MAX_SEQUENCES = 1 << 16


class TextGenerator(TextMeasures):
    """A language model with its tokenizer and a KV cache on a device.

    Methods may be called from several threads, whose texts then run in shared batches. Common
    prompt prefixes are computed once. As a context manager it frees the device memory on exit.

    Args:
        source: A Hugging Face folder with config.json, safetensors and tokenizer.json; a GGUF file,
            or a folder with one GGUF model; or an ONNX file with past keys and values as inputs, as
            exported by onnxruntime-genai's builder and optimum, or its folder.
        draft: Draft model: a smaller model with the same vocabulary, for speculative decoding.
            Texts stay the same, and are generated faster if its draft tokens are often accepted.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None reads CLRT_DEVICE.
        context: Maximum number of tokens of prompt and text together; with an encoder, of each
            separately. None for the model's own; a larger context needs a model without learned
            position embeddings.
        cache: Dtype of cached keys and values: "float32", "float16" (half the memory of float32) or
            "int8" (0.27 of the memory of float32).
        lora: LoRA adapters to merge into the weights: folders of Hugging Face's peft, or
            llama.cpp's GGUF files. (path, factor) scales an adapter. Several adapters add up.
        sequences: Maximum number of texts that run at a time; further texts are queued.
        cache_dir: Folder for compiled programs; None for the default.
        memory_limit: Maximum device memory, in bytes or as a string such as "2GiB"; None for the
            device's memory. A draft model may use as much again.

    Raises:
        ModelError: A file is missing or damaged, or an adapter belongs to another model.
        UnsupportedError: The model family is unknown, its format takes no adapters, or tokenizers
            is not installed.
        DeviceError: The requested device is absent.
        InputError: An option has no valid value, or the draft model has another vocabulary.
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
        sequences = whole_number("sequences", sequences, _MAX_SEQUENCES)
        if not isinstance(source, str | Path):
            raise InputError(
                f"The source is {source!r}; expected the path of a model folder or file."
            )
        named = named_adapters(lora)
        self._model = open_language_model(
            expanded(Path(source)), context, cache, named, device, cache_dir
        )
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
        """Maximum number of tokens of prompt and text together; with an encoder, of each alone."""
        return self._model.context

    def generate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[GenerateOptions]
    ) -> Any:
        """Generates the continuation of one prompt or several.

        Args:
            prompt: A string; the messages of a chat; tokens; or a list of prompts, which run in one
                batch.
            options: Options of `GenerateOptions`; missing ones come from the model's files.

        Returns:
            A `GeneratedText`. For a list of prompts, or if `num_return_sequences` is above 1, a
            list of `GeneratedText`, grouped by prompt.

        Raises:
            InputError: An option or a prompt has no valid value.
            OutOfMemoryError: One text alone does not fit into the cache.
        """
        request = self._requests.read(options)
        prompts = self._requests.prompts(prompt, request)
        if request.sampling.num_beams > 1:
            searches = self._requests.searches(self._scheduler, prompts, request)
            texts = [text for search in searches for text in search.run()]
        else:
            texts = self._together(prompts, request)
        return as_asked(texts, prompt)

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> GeneratedStream:
        """Generates the continuation of a prompt as a stream of text chunks.

        Closing the stream ends generation; its `result` is a `GeneratedText`.

        Args:
            prompt: A string, tokens or the messages of a chat.
            options: Options of `GenerateOptions`; missing ones come from the model's files.

        Raises:
            InputError: An option or the prompt has no valid value.
            UnsupportedError: The model's files require a feature that clrt does not support.
        """
        request = self._requests.read(options, "stream")
        return self._stream(tokens_of(self._model, prompt, request.chat), request)

    async def agenerate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[GenerateOptions]
    ) -> Any:
        """Generates the continuation of one prompt or several without blocking the event loop.

        Cancelling the task ends generation.

        Args:
            prompt: A string; the messages of a chat; tokens; or a list of prompts, which run in one
                batch.
            options: Options of `GenerateOptions`; missing ones come from the model's files.

        Returns:
            A `GeneratedText`. For a list of prompts, or if `num_return_sequences` is above 1, a
            list of `GeneratedText`, grouped by prompt.

        Raises:
            InputError: An option or a prompt has no valid value.
            OutOfMemoryError: One text alone does not fit into the cache.
        """
        from clrt.generation.async_streaming import finish_all, search_all

        request = self._requests.read(options)
        prompts = self._requests.prompts(prompt, request)
        if request.sampling.num_beams > 1:
            texts = await search_all(self._requests.searches(self._scheduler, prompts, request))
        else:
            answers = [a for tokens in prompts for a in self._requests.answers(tokens, request)]
            streams = [self._astream(answer) for answer in answers]
            self._scheduler.add(answers)
            texts = await finish_all(streams)
        return as_asked(texts, prompt)

    def astream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncGeneratedStream:
        """Generates the continuation of a prompt as an async stream of text chunks.

        Args:
            prompt: A string, tokens or the messages of a chat.
            options: Options of `GenerateOptions`; missing ones come from the model's files.

        Raises:
            InputError: An option or the prompt has no valid value.
            UnsupportedError: The model's files require a feature that clrt does not support.
        """
        request = self._requests.read(options, "astream")
        tokens = tokens_of(self._model, prompt, request.chat)
        (answer,) = self._requests.answers(tokens, request)
        stream = self._astream(answer)
        self._scheduler.add([answer])
        return stream

    def chat(self, system: str | None = None, **options: Unpack[GenerateOptions]) -> Chat:
        """Creates a chat whose turns reuse the cached keys and values of earlier turns.

        Args:
            system: System message; None for none.
            options: Options of `generate`, for all turns.

        Raises:
            InputError: An option has no valid value, or the model has no chat template.
        """
        request = self._requests.read(options, "chat")
        self._model.chat_template  # noqa: B018  raises errors now, and not at the first turn
        return Chat(self, system, request)

    def save_cache(self, path: str | Path, prompt: Prompt) -> int:
        """Writes the keys and values of a prompt to a file, from the cache or newly computed.

        Args:
            path: File to write.
            prompt: A string, tokens or the messages of a chat.

        Returns:
            Number of prompt tokens in the file, a multiple of the page size.

        Raises:
            InputError: The prompt is too short or too long, or the file cannot be written.
            OutOfMemoryError: The prompt does not fit into the cache.
            UnsupportedError: The model has an encoder.
        """
        tokens = self._requests.continued(prompt, "`save_cache`")
        compute = partial(compute_pages, self._scheduler, tokens)
        pages, start = self._scheduler.exclusive(lambda engine: compute())
        return write_cache(expanded(path), self._model.fingerprint, tokens, pages, start)

    def load_cache(self, path: str | Path) -> int:
        """Loads a file of `save_cache` into the cache, for prompts that begin with its prompt.

        The keys and values stay in the cache until evicted.

        Returns:
            Number of tokens in the file.

        Raises:
            ModelError: The file is damaged, or belongs to another model.
            OutOfMemoryError: The file does not fit into the cache.
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
        """Ends all generations and frees device memory; the generator cannot be used afterwards."""
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
        """Generates texts for several tokenized prompts in one batch; returns them in order."""
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
        """Returns the result of a generation; only the first result reports the load time."""
        load_s, self._load_s = self._load_s, 0.0
        return answer.result(load_s)

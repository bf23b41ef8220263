"""Sentences to vectors, as sentence-transformers makes them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError, ModelError
from clrt.model import Model, load
from clrt.pickling import Rebuilt
from clrt.signature import TensorSpec
from clrt.text.config import EncoderConfig, read_config
from clrt.text.feeds import fixed_dims, model_feeds
from clrt.text.locate import find_model
from clrt.text.pooling import MASK, RESULT, TOKENS, Pooling, pooling_masks
from clrt.text.tokenize import IntArray, TextTokenizer, Tokens

FloatArray = NDArray[np.float32]
OutputValue = Literal["sentence_embedding", "token_embeddings"]

_TOKEN_OUTPUTS = ("token_embeddings", "last_hidden_state")


@dataclass(frozen=True)
class _EncodeRequest:
    """What one call of `encode` asks for, checked."""

    batch_size: int
    normalize: bool
    truncate_dim: int | None
    prompt: str
    show_progress_bar: bool | None


class SentenceEncoder(Rebuilt):
    """A transformer encoder with its tokenizer, pooling and normalisation.

    Tokens are made on the host; the transformer, the pooling and the L2 normalisation run on the
    device, and only vectors come back. `encode` may be called from several threads. It pickles as
    its arguments, and copies.

    Args:
        path: A Hugging Face folder, an ONNX file with its tokenizer.json beside it or one folder
            above, or a name such as `all-MiniLM-L6-v2` that lies in Hugging Face's cache or in an
            installed package. Nothing is downloaded.
        device: As in `clrt.load`.
        pooling: "mean", "cls", "max", "mean_sqrt_len" or "sum"; by default what the folder says.
        max_length: Tokens after which a text is cut; by default what the folder says.
        strict: As in `clrt.load`.
        cache_dir: As in `clrt.load`.

    Raises:
        InputError: `pooling` or `max_length` is out of range.
        ModelError: The model or one of its files is missing or damaged.
        UnsupportedError: The model has a module, pooling mode or op that clrt lacks.
        DeviceError: The device asked for is absent.

    Source: sentence-transformers' `SentenceTransformer`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        device: str | int | None = None,
        pooling: str | None = None,
        max_length: int | None = None,
        strict: bool | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        config = read_config(find_model(path), pooling)
        if max_length is not None:
            config = replace(config, max_length=_checked_length(max_length, config))
        self._config = config
        self._tokenizer = TextTokenizer(config)
        self._model = load(config.source, device=device, strict=strict, cache_dir=cache_dir)
        self._output = _token_output(self._model, config.source)
        _check_inputs(self._model, config.source)
        self._rows, self._length = fixed_dims(self._model.inputs)
        if self._length is not None and self._length < (config.max_length or sys.maxsize):
            if max_length is not None:
                raise InputError(
                    f"max_length={max_length} is more than the {self._length} tokens that the "
                    "model's inputs have."
                )
            self._config = replace(config, max_length=self._length)
            self._tokenizer = TextTokenizer(self._config)
        self._pooling = Pooling(
            config.modes, self._output, self._model.device.index, strict, cache_dir
        )
        self._dimension: int | None = None

    @property
    def model(self) -> Model:
        """The transformer."""
        return self._model

    @property
    def pooling(self) -> tuple[str, ...]:
        """The pooling modes; several are concatenated."""
        return self._config.modes

    @property
    def max_length(self) -> int | None:
        """Tokens after which a text is cut, special ones included; None means never."""
        return self._config.max_length

    @property
    def dimension(self) -> int:
        """Size of a sentence's vector."""
        if self._dimension is None:
            hidden = self._output.shape[-1] if self._output.shape else None
            hidden = hidden if isinstance(hidden, int) else self._config.hidden
            if hidden is None:
                hidden = self.encode("", output_value="token_embeddings")[0].shape[-1]
            whole = int(hidden) * len(self._config.modes)
            self._dimension = min(whole, self._config.truncate_dim or whole)
        return self._dimension

    @overload
    def encode(
        self,
        sentences: str | Iterable[str],
        batch_size: int = ...,
        normalize_embeddings: bool = ...,
        show_progress_bar: bool | None = ...,
        truncate_dim: int | None = ...,
        output_value: Literal["sentence_embedding"] = ...,
        prompt: str | None = ...,
    ) -> FloatArray: ...

    @overload
    def encode(
        self,
        sentences: str | Iterable[str],
        batch_size: int = ...,
        normalize_embeddings: bool = ...,
        show_progress_bar: bool | None = ...,
        truncate_dim: int | None = ...,
        *,
        output_value: Literal["token_embeddings"],
        prompt: str | None = ...,
    ) -> FloatArray | list[FloatArray]: ...

    def encode(
        self,
        sentences: str | Iterable[str],
        batch_size: int = 32,
        normalize_embeddings: bool = True,
        show_progress_bar: bool | None = None,
        truncate_dim: int | None = None,
        output_value: OutputValue = "sentence_embedding",
        prompt: str | None = None,
    ) -> FloatArray | list[FloatArray]:
        """The vectors of sentences, in the caller's order.

        An empty string is a valid sentence: its special tokens are encoded.

        Args:
            sentences: One string, or any number of them.
            batch_size: Sentences per run of the model, if the model does not fix that itself.
            normalize_embeddings: Vectors get unit length. A folder with a Normalize module gives
                unit length in any case.
            show_progress_bar: None shows one on a terminal where there are several batches.
            truncate_dim: Keep only so many numbers at the start of each vector. Normalisation comes
                after that.
            output_value: "sentence_embedding", or "token_embeddings" for the vectors of all
                tokens, neither pooled nor normalised.
            prompt: Prepended to each sentence. None takes the folder's default prompt, "" takes
                none.

        Returns:
            float32 [dimension] for a string, [n, dimension] for n sentences. For token embeddings
            [tokens, hidden], or a list of those: with special tokens, without padding.

        Raises:
            InputError: A sentence is no string, or an option is out of range.
        """
        single = isinstance(sentences, str)
        texts = _as_texts(sentences)
        if output_value not in ("sentence_embedding", "token_embeddings"):
            raise InputError(
                f"output_value={output_value!r} is not one of sentence_embedding, token_embeddings."
            )
        request = _EncodeRequest(
            _positive("batch_size", batch_size),
            normalize_embeddings,
            self._config.truncate_dim
            if truncate_dim is None
            else min(_positive("truncate_dim", truncate_dim), sys.maxsize),
            _as_prompt(self._config.prompt if prompt is None else prompt),
            show_progress_bar,
        )
        if output_value == "token_embeddings":
            arrays = self._token_embeddings(texts, request)
            return arrays[0] if single else arrays
        vectors = self._sentence_embeddings(texts, request)
        return vectors[0] if single else vectors

    def close(self) -> None:
        """Frees the device memory."""
        self._pooling.close()
        self._model.close()

    def __enter__(self) -> SentenceEncoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sentence_embeddings(self, texts: Sequence[str], request: _EncodeRequest) -> FloatArray:
        if not texts:
            return np.zeros(
                (0, min(self.dimension, request.truncate_dim or sys.maxsize)), np.float32
            )
        skipped = (
            0 if self._config.include_prompt else self._tokenizer.prompt_length(request.prompt)
        )
        pooler = self._pooling.model(
            self._config.normalize, request.truncate_dim, request.normalize
        )
        vectors: FloatArray | None = None
        for rows, feeds, mask in self._batches(texts, request):
            tokens = self._model.run(feeds, outputs=[self._output.name], device_outputs=True)
            masks = pooling_masks(self._config.modes, mask, skipped)
            pooled = pooler.run({TOKENS: tokens[self._output.name], **masks})[RESULT]
            if vectors is None:
                vectors = np.empty((len(texts), pooled.shape[1]), np.float32)
            vectors[rows] = pooled[: len(rows)]
        assert vectors is not None
        return vectors

    def _token_embeddings(self, texts: Sequence[str], request: _EncodeRequest) -> list[FloatArray]:
        found: dict[int, FloatArray] = {}
        for rows, feeds, mask in self._batches(texts, request):
            answer = self._model.run(feeds, outputs=[self._output.name])
            arrays = np.asarray(answer[self._output.name], np.float32)
            for row, array, length in zip(rows, arrays, mask.sum(axis=1), strict=False):
                found[int(row)] = array[: int(length)].copy()
        return [found[i] for i in range(len(texts))]

    def _batches(
        self, texts: Sequence[str], request: _EncodeRequest
    ) -> Iterator[tuple[NDArray[np.intp], dict[str, NDArray[Any]], IntArray]]:
        """Positions in `texts`, model inputs and mask of each batch.

        The longest texts come first: there is little padding, and the arena of the first batch
        holds all others.
        """
        size = self._rows or request.batch_size
        tokens = self._tokenizer.encode(
            [request.prompt + t for t in texts] if request.prompt else texts
        )
        order = np.argsort([-len(t) for t in tokens], kind="stable")
        one_batch = len(texts) <= size
        show = request.show_progress_bar
        if show is None:
            show = not one_batch and sys.stderr is not None and sys.stderr.isatty()
        with _progress(len(texts), show) as advance:
            for start in range(0, len(texts), size):
                rows = order[start : start + size]
                batch = [tokens[int(i)] for i in rows]
                longest = len(batch[0])
                length = _common_length(longest, self.max_length) if one_batch else longest
                yield rows, *self._feeds(batch, length)
                advance(len(rows))

    def _feeds(
        self, batch: Sequence[Tokens], length: int
    ) -> tuple[dict[str, NDArray[Any]], IntArray]:
        feeds = model_feeds(batch, length, self._tokenizer.pad_id, self._model.inputs)
        return feeds, np.asarray(feeds[MASK], np.int64)


@contextmanager
def _progress(total: int, shown: bool) -> Iterator[Callable[[int], object]]:
    """Gives a function that advances the progress bar, if there is one, by a number of texts."""
    if not shown or sys.stderr is None:  # as in programs of Windows with a window
        yield lambda done: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, unit="sentence") as bar:
        yield bar.update


def _common_length(length: int, limit: int | None) -> int:
    """The length rounded up to one of eight lengths per power of two: at most an eighth more.

    Calls of one batch, such as single queries, then meet few shapes, whose plans are kept. Calls of
    many batches meet the same lengths anyway, and padding would only cost time.
    """
    step = 1 << max(length.bit_length() - 4, 0)
    return min(-(-length // step) * step, limit or sys.maxsize)


def _as_texts(sentences: object) -> list[str]:
    if isinstance(sentences, str):
        return [sentences]
    if isinstance(sentences, np.ndarray) and sentences.ndim == 0:
        sentences = [sentences.item()]
    if isinstance(sentences, bytes | Mapping) or not isinstance(sentences, Iterable):
        raise InputError(
            f"Sentences must be a string or a list of strings, not {type(sentences).__name__}."
        )
    texts = list(sentences)
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"Sentence {position} must be a string, not {type(text).__name__} ({text!r:.80})."
            )
    return texts


def _as_prompt(prompt: object) -> str:
    if not isinstance(prompt, str):
        raise InputError(f"prompt must be a string, not {type(prompt).__name__}.")
    return prompt


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(
            f"{name}={value!r} is out of range; expected a whole number of at least 1."
        )
    return int(value)


def _checked_length(max_length: int, config: EncoderConfig) -> int:
    length = _positive("max_length", max_length)
    if config.positions is not None and length > config.positions:
        raise InputError(
            f"max_length={length} is more than the {config.positions} positions the model has."
        )
    return length


def _token_output(model: Model, source: Path) -> TensorSpec:
    """The output with a vector per token: by its usual names, else the first of rank 3."""
    by_name = {spec.name: spec for spec in model.outputs}
    named = [by_name[name] for name in _TOKEN_OUTPUTS if name in by_name]
    ranked = [s for s in model.outputs if s.shape is not None and len(s.shape) == 3]
    for spec in named + ranked:
        return spec
    raise ModelError(
        f"'{source}' has no output of shape [batch, sequence, hidden]; it has "
        f"{', '.join(by_name)}. Export the model without its head (feature extraction)."
    )


def _check_inputs(model: Model, source: Path) -> None:
    needed = {"input_ids", MASK}
    names = {spec.name for spec in model.inputs}
    if names - {"token_type_ids"} != needed:
        raise ModelError(
            f"'{source}' has the inputs {', '.join(sorted(names))}; a sentence encoder takes "
            f"input_ids, {MASK} and, where it has it, token_type_ids."
        )

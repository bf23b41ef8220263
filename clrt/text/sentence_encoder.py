"""Sentence embeddings, compatible with sentence-transformers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.models.locate import find_model
from clrt.text.config import EncoderConfig, read_config
from clrt.text.embedder import Embedder
from clrt.text.pooling import RESULT, TOKENS, Pooling, pooling_masks
from clrt.text.quantize import check_precision, quantize_embeddings
from clrt.text.sentence_transformers_compat import (
    CALL_OPTIONS,
    LOAD_OPTIONS,
    accepts_old_names,
    hub_cache,
    ignore,
)
from clrt.text.text_model import LoadOptions, Progress, TextRequest, converted, last_size, positive
from clrt.text.tokenize import Text
from clrt.text.torch_interop import to_tensor

FloatArray = NDArray[np.float32]
OutputValue = Literal["sentence_embedding", "token_embeddings"]
Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]


class SentenceEncoder(Embedder):
    """Sentence encoder: a transformer with its tokenizer, pooling and normalization.

    The host tokenizes; the transformer, the pooling and the L2 normalization run on the device,
    and only vectors are read back. `encode` is thread-safe. Pickling and copying store the
    constructor arguments and the attributes that were set afterwards.

    Accepts the arguments of sentence-transformers' class. Arguments without effect in clrt, such as
    `trust_remote_code`, are ignored and logged at debug level.

    Args:
        model_name_or_path: A Hugging Face folder, a compiled model, an ONNX file with its
            tokenizer.json beside it or one folder above, or a name such as `all-MiniLM-L6-v2`,
            looked up in Hugging Face's cache and in installed packages. Nothing is downloaded.
        device: As in `clrt.load`; "cuda" and "mps" mean any GPU.
        pooling: "mean", "cls", "max", "mean_sqrt_len", "sum", "weightedmean" or "lasttoken";
            None uses the folder's mode.
        max_length: Maximum tokens per text, special ones included; None uses the folder's.
        prompts: Prompts by name, added to the folder's.
        default_prompt_name: Name of the prompt used if a call names none; None uses the
            folder's.
        similarity_fn_name: "cosine", "dot", "euclidean" or "manhattan"; None uses the folder's,
            else "cosine".
        truncate_dim: Number of leading elements kept of each vector; None uses the folder's.
        strict: As in `clrt.load`.
        cache_dir: As in `clrt.load`.

    Attributes:
        prompts: Prompts by name; a prompt is prepended to texts.
        default_prompt_name: Name of the prompt used if a call names none; None for no prompt.
        truncate_dim: Number of leading elements kept of each vector; None keeps all.

    Raises:
        InputError: `pooling` or another option is out of range.
        ModelError: The model or one of its files is missing or damaged.
        UnsupportedError: The model has a module, pooling mode or op that clrt lacks.
        DeviceError: The requested device is absent.

    Source: sentence-transformers' `SentenceTransformer`.
    """

    _default_similarity = "cosine"
    _settable = (*Embedder._settable, "truncate_dim")
    _config: EncoderConfig

    @accepts_old_names(path="model_name_or_path")
    def __init__(
        self,
        model_name_or_path: str | Path,
        *,
        device: Any = None,
        pooling: str | None = None,
        max_length: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: object = None,
        truncate_dim: int | None = None,
        strict: bool | None = None,
        cache_dir: str | Path | None = None,
        **others: Any,
    ) -> None:
        ignore("SentenceEncoder", others, LOAD_OPTIONS)
        config = read_config(find_model(model_name_or_path, hub_cache(others)), pooling)
        options = LoadOptions(device, max_length, prompts, default_prompt_name, strict, cache_dir)
        super().__init__(config, options, similarity_fn_name)
        self.truncate_dim = config.truncate_dim if truncate_dim is None else truncate_dim
        self._tokens = self._output(
            ("token_embeddings", "last_hidden_state"),
            ("batch", "sequence", "hidden"),
            "Export the model without its head (feature extraction).",
        )
        pooled = (config.modes, self._tokens, self.device.index, strict, cache_dir, config.stages)
        self._pooling = Pooling(*pooled)
        self._dimension: int | None = None

    @property
    def pooling(self) -> tuple[str, ...]:
        """Pooling modes; the vectors of several modes are concatenated."""
        return self._config.modes

    @property
    def dimension(self) -> int:
        """Elements per sentence vector, after truncation."""
        return self._kept(self.truncate_dim)

    def get_embedding_dimension(self) -> int:
        """Returns `dimension`; sentence-transformers' name for it."""
        return self.dimension

    get_sentence_embedding_dimension = get_embedding_dimension

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Sets the attribute `truncate_dim` within the context, and restores it afterwards."""
        before = self.truncate_dim
        self.truncate_dim = truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    truncate_sentence_embeddings = truncate_embeddings

    @overload
    def encode(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        batch_size: int = ...,
        show_progress_bar: bool | None = ...,
        output_value: Literal["sentence_embedding"] = ...,
        precision: Literal["float32"] = ...,
        convert_to_numpy: Literal[True] = ...,
        convert_to_tensor: Literal[False] = ...,
        device: Any = ...,
        normalize_embeddings: bool = ...,
        truncate_dim: int | None = ...,
        *,
        progress: Progress | None = ...,
        **others: Any,
    ) -> FloatArray: ...

    @overload
    def encode(self, inputs: str | Iterable[str], *args: Any, **options: Any) -> Any: ...

    @accepts_old_names(sentences="inputs")
    def encode(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: OutputValue = "sentence_embedding",
        precision: Precision = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        *,
        progress: Progress | None = None,
        **others: Any,
    ) -> Any:
        """Computes the vectors of sentences, in the caller's order.

        An empty string is a valid sentence: its special tokens are encoded.

        Args:
            inputs: One string or an iterable of strings. `sentences=` is an alias.
            prompt_name: Key of `prompts`; that prompt is prepended to each sentence.
            prompt: Prompt to prepend; overrides `prompt_name` and the default. "" for none.
            batch_size: Maximum sentences per run; ignored if the model fixes its batch size.
            show_progress_bar: None shows a bar if stderr is a terminal and there are several
                batches.
            output_value: "sentence_embedding", or "token_embeddings" for the vectors of all
                tokens, neither pooled nor normalized.
            precision: Element type of the result, as in `quantize_embeddings`. Ignored for token
                embeddings.
            convert_to_numpy: False returns a list of torch tensors (needs torch). Ignored for
                token embeddings.
            convert_to_tensor: True returns one torch tensor (needs torch); for token embeddings a
                list of tensors.
            device: None, or the device that the model was loaded for.
            normalize_embeddings: Whether to L2-normalize vectors, after truncation. Folders with
                a Normalize module normalize in any case.
            truncate_dim: Number of leading elements kept of each vector; None uses the attribute.
            progress: Called after each batch with the number of sentences done and their total.
                An exception it raises ends the call.
            others: `chunk_size`, `pool`, `task`, `num_workers` and `save_to_cpu` of
                sentence-transformers; ignored.

        Returns:
            [dimension] for a string, [n, dimension] for n sentences; float32 unless `precision`
            selects another type. For token embeddings float32 [tokens, hidden] per sentence, with
            special tokens and without padding.

        Raises:
            InputError: A sentence is not a string, or an option is out of range.
        """
        ignore("encode", others, CALL_OPTIONS)
        single = isinstance(inputs, str)
        texts = self._texts(inputs)
        if output_value not in ("sentence_embedding", "token_embeddings"):
            raise InputError(
                f"output_value={output_value!r} is not one of sentence_embedding, token_embeddings."
            )
        request = self._request(
            batch_size, prompt, prompt_name, show_progress_bar, progress, device
        )
        if output_value == "token_embeddings":
            arrays = self._token_embeddings(texts, request)
            results = list(map(to_tensor, arrays)) if convert_to_tensor else arrays
        else:
            check_precision(precision)
            kept = self.truncate_dim if truncate_dim is None else truncate_dim
            kept = None if kept is None else min(positive("truncate_dim", kept), sys.maxsize)
            vectors = self._sentence_embeddings(texts, request, kept, normalize_embeddings)
            if precision != "float32":
                vectors = quantize_embeddings(vectors, precision)
            results = converted(vectors, convert_to_numpy, convert_to_tensor)
        return results[0] if single else results

    def close(self) -> None:
        """Releases the device memory."""
        self._pooling.close()
        super().close()

    def _kept(self, truncate_dim: int | None) -> int:
        """Returns the number of elements per vector after truncation.

        Args:
            truncate_dim: Number of leading elements to keep; None keeps all.
        """
        if self._dimension is None:
            hidden = last_size(self._tokens) or self._config.hidden
            if hidden is None:
                hidden = self.encode("", output_value="token_embeddings")[0].shape[-1]
            widths = [s.width for s in self._config.stages if s.width is not None]
            self._dimension = widths[-1] if widths else int(hidden) * len(self._config.modes)
        return min(self._dimension, truncate_dim or sys.maxsize)

    def _sentence_embeddings(
        self, texts: Sequence[Text], request: TextRequest, truncate_dim: int | None, normalize: bool
    ) -> FloatArray:
        if not texts:
            return np.zeros((0, self._kept(truncate_dim)), np.float32)
        include = self._config.include_prompt
        skipped = 0 if include else self._tokenizer.prompt_length(request.prompt)
        pooler = self._pooling.model(self._config.normalize, truncate_dim, normalize)
        vectors: FloatArray | None = None
        for batch in self._batches(texts, request):
            tokens = self._model.run(batch.feeds, outputs=[self._tokens.name], device_outputs=True)
            masks = pooling_masks(self._config.modes, batch.mask, skipped)
            pooled = pooler.run({TOKENS: tokens[self._tokens.name], **masks})[RESULT]
            if vectors is None:
                vectors = np.empty((len(texts), pooled.shape[1]), np.float32)
            vectors[batch.rows] = pooled[: len(batch.rows)]
        assert vectors is not None
        return vectors

    def _token_embeddings(self, texts: Sequence[Text], request: TextRequest) -> list[FloatArray]:
        embeddings: dict[int, FloatArray] = {}
        for batch in self._batches(texts, request):
            outputs = self._model.run(batch.feeds, outputs=[self._tokens.name])
            arrays = np.asarray(outputs[self._tokens.name], np.float32)
            for row, array, mask in zip(batch.rows, arrays, batch.mask, strict=False):
                embeddings[int(row)] = array[mask != 0]
        return [embeddings[i] for i in range(len(texts))]

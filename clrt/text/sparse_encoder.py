"""Sparse embeddings over the vocabulary (SPLADE), compatible with sentence-transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.models.locate import find_model
from clrt.runtime.model.graph_recipe import GraphRecipe
from clrt.runtime.model.model import load
from clrt.text.config import SparseConfig, read_sparse_config
from clrt.text.embedder import Embedder
from clrt.text.pooling import LOGITS, MASK, RESULT
from clrt.text.sentence_transformers_compat import (
    CALL_OPTIONS,
    LOAD_OPTIONS,
    accepts_old_names,
    hub_cache,
    ignore,
)
from clrt.text.sparse_vectors import SparseVectors
from clrt.text.text_model import LoadOptions, Progress, TextRequest, last_size, positive
from clrt.text.tokenize import Text


class SparseEncoder(Embedder):
    """Sparse encoder: pools the logits of a masked language model over the tokens of a text.

    A vector has one element per token of the vocabulary; most are zero.

    Args:
        model_name_or_path: As in `SentenceEncoder`; the model must be a masked language model
            with its head.
        similarity_fn_name: As in `SentenceEncoder`; the default is "dot".
        max_active_dims: Maximum number of nonzero elements per vector, of which the largest are
            kept. None uses the folder's limit; if it has none, all are kept.
        device: As in `SentenceEncoder`.
        max_length: As in `SentenceEncoder`.
        prompts: As in `SentenceEncoder`.
        default_prompt_name: As in `SentenceEncoder`.
        strict: As in `SentenceEncoder`.
        cache_dir: As in `SentenceEncoder`.

    Attributes:
        max_active_dims: Maximum number of nonzero elements per vector; None for no limit.

    Raises:
        InputError, ModelError, UnsupportedError, DeviceError: As `SentenceEncoder`.

    Source: sentence-transformers' `SparseEncoder` with SpladePooling; Formal et al., SPLADE v2.
    """

    _default_similarity = "dot"
    _settable = (*Embedder._settable, "max_active_dims")
    _config: SparseConfig

    def __init__(
        self,
        model_name_or_path: str | Path,
        *,
        device: Any = None,
        max_length: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: object = None,
        max_active_dims: int | None = None,
        strict: bool | None = None,
        cache_dir: str | Path | None = None,
        **others: Any,
    ) -> None:
        ignore("SparseEncoder", others, LOAD_OPTIONS)
        config = read_sparse_config(find_model(model_name_or_path, hub_cache(others)))
        options = LoadOptions(device, max_length, prompts, default_prompt_name, strict, cache_dir)
        super().__init__(config, options, similarity_fn_name)
        asked = config.max_active_dims if max_active_dims is None else max_active_dims
        self.max_active_dims = None if asked is None else positive("max_active_dims", asked)
        self._logits = self._output(
            (LOGITS,),
            ("batch", "sequence", "vocabulary"),
            "Take a masked language model, with its head.",
        )
        self._size = last_size(self._logits)
        arguments = (config.strategy, config.activation, self._logits)
        recipe = GraphRecipe("clrt.text.splade:splade_graph", arguments, str(arguments))
        self._pooling = load(recipe, device=self.device.index, strict=strict, cache_dir=cache_dir)

    @property
    def dimension(self) -> int:
        """Elements per vector: the size of the vocabulary."""
        if self._size is None:
            self._size = self._vectors([""], TextRequest(1, ""), None).shape[1]
        return self._size

    def get_embedding_dimension(self) -> int:
        """Returns `dimension`; sentence-transformers' name for it."""
        return self.dimension

    get_sentence_embedding_dimension = get_embedding_dimension

    @accepts_old_names(sentences="inputs")
    def encode(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_tensor: bool = True,
        convert_to_sparse_tensor: bool = True,
        *,
        device: Any = None,
        max_active_dims: int | None = None,
        progress: Progress | None = None,
        **others: Any,
    ) -> Any:
        """Computes the sparse vectors of texts, in the caller's order.

        Arguments that are not listed are as in `SentenceEncoder.encode`.

        Args:
            inputs: One string or an iterable of strings. `sentences=` is an alias.
            convert_to_tensor: Whether the vectors of several texts are one matrix; if False, they
                are a list with one vector per text.
            convert_to_sparse_tensor: Whether vectors are `SparseVectors`; if False, they are dense
                float32 arrays.
            max_active_dims: Maximum number of nonzero elements per vector; None uses the attribute.

        Returns:
            Vectors [n, dimension], [dimension] for a string, or a list of vectors [dimension].

        Raises:
            InputError: A text is not a string, or an option is out of range.
        """
        ignore("encode", others, CALL_OPTIONS)
        texts = self._texts(inputs)
        request = self._request(
            batch_size, prompt, prompt_name, show_progress_bar, progress, device
        )
        kept = self.max_active_dims
        if max_active_dims is not None:
            kept = positive("max_active_dims", max_active_dims)
        vectors = self._vectors(texts, request, kept)
        results = vectors if convert_to_sparse_tensor else vectors.to_dense()
        if isinstance(inputs, str):
            return results[0]
        return results if convert_to_tensor else list(results)

    def decode(
        self, embeddings: SparseVectors | NDArray[Any], top_k: int | None = None
    ) -> list[Any]:
        """Returns the tokens of a vector's nonzero elements with their values, by falling value.

        Args:
            embeddings: Result of `encode`.
            top_k: Maximum number of tokens per vector; None for all.

        Returns:
            (token, value) pairs for one vector, a list of them per row for a matrix.
        """
        limit = None if top_k is None else positive("top_k", top_k)
        vectors = (
            embeddings if isinstance(embeddings, SparseVectors) else SparseVectors.of(embeddings)
        )
        named = []
        for row in vectors.rows:
            order = np.argsort(-row.values, kind="stable")[:limit]
            tokens = map(self.tokenizer.id_to_token, row.indices[order].tolist())
            named.append(list(zip(tokens, row.values[order].tolist(), strict=True)))
        return named[0] if vectors.ndim == 1 else named

    @staticmethod
    def sparsity(embeddings: SparseVectors) -> dict[str, float]:
        """Computes the mean sparsity of vectors.

        Returns:
            "active_dims", the mean number of nonzero elements per vector, and "sparsity_ratio", the
            fraction of elements that are zero.
        """
        rows = embeddings.rows
        count, width = rows.shape
        active = len(rows.values) / count if count else 0.0
        return {"active_dims": active, "sparsity_ratio": 1 - active / width if width else 1.0}

    @staticmethod
    def intersection(embeddings_1: SparseVectors, embeddings_2: SparseVectors) -> SparseVectors:
        """Multiplies vectors element by element; negative products become 0.

        An element of the result is nonzero only if the element of both vectors is nonzero and has
        the same sign.

        Args:
            embeddings_1: One vector.
            embeddings_2: One vector, or a matrix of vectors.

        Returns:
            The products, in the shape of `embeddings_2`.

        Raises:
            InputError: `embeddings_1` is a matrix.
        """
        if embeddings_1.ndim != 1:
            raise InputError("The first argument of an intersection must be one vector, not rows.")
        return SparseVectors.of(np.maximum(embeddings_1.to_dense() * embeddings_2.to_dense(), 0))

    def close(self) -> None:
        """Frees the device memory."""
        self._pooling.close()
        super().close()

    def _vectors(
        self, texts: Sequence[Text], request: TextRequest, kept: int | None
    ) -> SparseVectors:
        """Encodes texts; keeps the `kept` largest elements per vector (None: all)."""
        rows: dict[int, SparseVectors] = {}
        name = self._logits.name
        for batch in self._batches(texts, request):
            logits = self._model.run(batch.feeds, outputs=[name], device_outputs=True)[name]
            pooled = self._pooling.run({LOGITS: logits, MASK: batch.mask})[RESULT]
            vectors = SparseVectors.of(_largest(pooled[: len(batch.rows)], kept))
            rows.update(zip(batch.rows.tolist(), vectors, strict=True))
        width = rows[0].shape[0] if rows else self.dimension
        return SparseVectors.stack([rows[i] for i in range(len(texts))], width)


def _largest(vectors: NDArray[np.float32], kept: int | None) -> NDArray[np.float32]:
    """Keeps the largest elements of each vector and sets the others to 0.

    Args:
        vectors: [n, size].
        kept: Number of elements to keep; None keeps all.
    """
    if kept is None or kept >= vectors.shape[1]:
        return vectors
    columns = np.argpartition(-vectors, kept - 1, axis=1)[:, :kept]
    result = np.zeros_like(vectors)
    np.put_along_axis(result, columns, np.take_along_axis(vectors, columns, axis=1), axis=1)
    return result

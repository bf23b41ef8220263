"""Texts to sparse vectors over the vocabulary (SPLADE), as sentence-transformers makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.models.locate import find_model
from clrt.runtime.model.model import load
from clrt.text.config import SparseConfig, read_sparse_config
from clrt.text.embedder import Embedder
from clrt.text.pooling import MASK, RESULT
from clrt.text.sentence_transformers_compat import (
    CALL_OPTIONS,
    LOAD_OPTIONS,
    accepts_old_names,
    hub_cache,
    ignore,
)
from clrt.text.sparse_vectors import SparseVectors
from clrt.text.splade import LOGITS, splade_graph
from clrt.text.text_model import LoadOptions, Progress, TextRequest, last_size, positive
from clrt.text.tokenize import Text


class SparseEncoder(Embedder):
    """A masked language model whose logits, pooled over the tokens, are a text's vector.

    Each number of a vector stands for a token of the vocabulary; few are not zero.

    Args:
        model_name_or_path: As in `SentenceEncoder`. The model has the head of a masked language
            model.
        device: As in `SentenceEncoder`; so too the arguments that are not listed here.
        similarity_fn_name: As there; by default "dot".
        max_active_dims: How many numbers of each vector are kept, the largest; by default what
            the folder says, else all.

    Attributes:
        max_active_dims: How many numbers of each vector are kept, or None for all.

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
        graph = splade_graph(config.strategy, config.activation, self._logits)
        self._pooling = load(graph, device=self.device.index, strict=strict, cache_dir=cache_dir)

    @property
    def dimension(self) -> int:
        """Size of a vector: that of the vocabulary."""
        if self._size is None:
            self._size = self._vectors([""], TextRequest(1, ""), None).shape[1]
        return self._size

    def get_embedding_dimension(self) -> int:
        """`dimension`, by sentence-transformers' name."""
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
        """The sparse vectors of texts, in the caller's order.

        Args:
            inputs: As in `SentenceEncoder.encode`; so too the arguments that are not listed here.
            convert_to_tensor: False gives a list of vectors.
            convert_to_sparse_tensor: False gives dense arrays.
            max_active_dims: How many numbers of each vector are kept, the largest.

        Returns:
            `SparseVectors` [n, dimension], or [dimension] for a string; a float32 array of that
            shape where dense ones are asked for.

        Raises:
            InputError: A text is no string, or an option is out of range.
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
        found = vectors if convert_to_sparse_tensor else vectors.to_dense()
        if isinstance(inputs, str):
            return found[0]
        return found if convert_to_tensor else list(found)

    def decode(
        self, embeddings: SparseVectors | NDArray[Any], top_k: int | None = None
    ) -> list[Any]:
        """The tokens that a vector stands for and their numbers, the largest first.

        Args:
            embeddings: What `encode` gives.
            top_k: How many tokens per vector; None for all.

        Returns:
            (token, number) pairs for one vector, a list of such lists for rows.
        """
        most = None if top_k is None else positive("top_k", top_k)
        given = (
            embeddings if isinstance(embeddings, SparseVectors) else SparseVectors.of(embeddings)
        )
        named = []
        for row in given.rows:
            order = np.argsort(-row.values, kind="stable")[:most]
            tokens = map(self.tokenizer.id_to_token, row.indices[order].tolist())
            named.append(list(zip(tokens, row.values[order].tolist(), strict=True)))
        return named[0] if given.ndim == 1 else named

    @staticmethod
    def sparsity(embeddings: SparseVectors) -> dict[str, float]:
        """How sparse vectors are.

        Returns:
            "active_dims", the mean number of values that are not zero, and "sparsity_ratio", the
            share of zeros.
        """
        rows = embeddings.rows
        count, width = rows.shape
        active = len(rows.values) / count if count else 0.0
        return {"active_dims": active, "sparsity_ratio": 1 - active / width if width else 1.0}

    @staticmethod
    def intersection(embeddings_1: SparseVectors, embeddings_2: SparseVectors) -> SparseVectors:
        """What two vectors share: the products of their numbers, where both are positive.

        Args:
            embeddings_1: One vector.
            embeddings_2: One vector, or rows.

        Returns:
            The shape of `embeddings_2`.
        """
        if embeddings_1.ndim != 1:
            raise InputError("The first of an intersection is one vector, not rows.")
        return SparseVectors.of(np.maximum(embeddings_1.to_dense() * embeddings_2.to_dense(), 0))

    def close(self) -> None:
        """Frees the device memory."""
        self._pooling.close()
        super().close()

    def _vectors(
        self, texts: Sequence[Text], request: TextRequest, kept: int | None
    ) -> SparseVectors:
        rows: dict[int, SparseVectors] = {}
        name = self._logits.name
        for batch in self._batches(texts, request):
            logits = self._model.run(batch.feeds, outputs=[name], device_outputs=True)[name]
            pooled = self._pooling.run({LOGITS: logits, MASK: batch.mask})[RESULT]
            found = SparseVectors.of(_largest(pooled[: len(batch.rows)], kept))
            rows.update(zip(batch.rows.tolist(), found, strict=True))
        width = rows[0].shape[0] if rows else self.dimension
        return SparseVectors.stack([rows[i] for i in range(len(texts))], width)


def _largest(vectors: NDArray[np.float32], kept: int | None) -> NDArray[np.float32]:
    """The vectors with all but their largest numbers set to 0."""
    if kept is None or kept >= vectors.shape[1]:
        return vectors
    places = np.argpartition(-vectors, kept - 1, axis=1)[:, :kept]
    found = np.zeros_like(vectors)
    np.put_along_axis(found, places, np.take_along_axis(vectors, places, axis=1), axis=1)
    return found

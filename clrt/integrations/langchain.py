"""LangChain embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings

from clrt.integrations.encoders import encoder_of
from clrt.text import SentenceEncoder


class ClrtEmbeddings(Embeddings):  # type: ignore[misc]
    """LangChain `Embeddings` for vector stores and retrievers.

    Args:
        model: A `SentenceEncoder`, or a path or name to load one.
        batch_size: Texts per run.
        normalize_embeddings: Whether to L2-normalize vectors.
        options: Keyword arguments of `SentenceEncoder`, such as `device`, for a path or name only.
    """

    def __init__(
        self,
        model: SentenceEncoder | str | Path,
        *,
        batch_size: int = 32,
        normalize_embeddings: bool = False,
        **options: Any,
    ) -> None:
        self.encoder = encoder_of(model, options)
        self._call: dict[str, Any] = {
            "batch_size": batch_size,
            "normalize_embeddings": normalize_embeddings,
        }

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Computes the vectors of documents, with the model's document prompt."""
        vectors: list[list[float]] = self.encoder.encode_document(texts, **self._call).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Computes the vector of a query, with the model's query prompt."""
        vector: list[float] = self.encoder.encode_query(text, **self._call).tolist()
        return vector

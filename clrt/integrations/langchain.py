"""A LangChain `Embeddings`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings

from clrt.integrations.encoders import encoder_of
from clrt.text import SentenceEncoder


class ClrtEmbeddings(Embeddings):  # type: ignore[misc]
    """Embeddings for LangChain's vector stores and retrievers.

    Args:
        model: A `SentenceEncoder`, or what makes one: a path or a name.
        batch_size: Texts per run.
        normalize_embeddings: Vectors get unit length.
        options: Arguments of `SentenceEncoder`, such as `device`.
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
        """The vectors of documents, with the model's prompt for those."""
        found: list[list[float]] = self.encoder.encode_document(texts, **self._call).tolist()
        return found

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query, with the model's prompt for those."""
        found: list[float] = self.encoder.encode_query(text, **self._call).tolist()
        return found

"""LlamaIndex embedding model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field, PrivateAttr

from clrt.integrations.encoders import encoder_of
from clrt.text import SentenceEncoder


class ClrtEmbedding(BaseEmbedding):  # type: ignore[misc]
    """Embedding model for LlamaIndex's `Settings.embed_model` and indices.

    Args:
        model: A `SentenceEncoder`, or a path or name to load one.
        normalize_embeddings: Whether to L2-normalize vectors.
        encoder_options: Keyword arguments of `SentenceEncoder`, such as `device`, for a path or
            name only.
        fields: Fields of LlamaIndex's `BaseEmbedding`, such as `embed_batch_size`.
    """

    normalize_embeddings: bool = Field(default=False, description="Give vectors unit length.")
    _encoder: SentenceEncoder = PrivateAttr()

    def __init__(
        self,
        model: SentenceEncoder | str | Path,
        *,
        normalize_embeddings: bool = False,
        encoder_options: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        name = "clrt" if isinstance(model, SentenceEncoder) else str(model)
        named = {"model_name": name, "normalize_embeddings": normalize_embeddings}
        super().__init__(**{**named, **fields})
        self._encoder = encoder_of(model, encoder_options or {})

    @classmethod
    def class_name(cls) -> str:
        """Returns the class name that LlamaIndex stores when it serializes this object."""
        return "ClrtEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._encoder.encode_query(query, **self._options()).tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._encoder.encode_document(
            texts, batch_size=self.embed_batch_size, **self._options()
        ).tolist()
        return vectors

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    def _options(self) -> dict[str, Any]:
        return {"normalize_embeddings": self.normalize_embeddings, "show_progress_bar": False}

"""A LlamaIndex embedding."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field, PrivateAttr

from clrt.integrations.encoders import encoder_of
from clrt.text import SentenceEncoder


class ClrtEmbedding(BaseEmbedding):  # type: ignore[misc]
    """An embedding for LlamaIndex's `Settings.embed_model` and indices.

    Args:
        model: A `SentenceEncoder`, or what makes one: a path or a name.
        normalize_embeddings: Vectors get unit length.
        encoder_options: Arguments of `SentenceEncoder`, such as `device`.
        fields: Those of LlamaIndex, such as `embed_batch_size`.
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
        """The name that LlamaIndex stores."""
        return "ClrtEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        found: list[float] = self._encoder.encode_query(query, **self._options()).tolist()
        return found

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = self._encoder.encode_document(
            texts, batch_size=self.embed_batch_size, **self._options()
        ).tolist()
        return found

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    def _options(self) -> dict[str, Any]:
        return {"normalize_embeddings": self.normalize_embeddings, "show_progress_bar": False}

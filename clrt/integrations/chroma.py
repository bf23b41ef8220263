"""A Chroma embedding function."""

from __future__ import annotations

from typing import Any

from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
from chromadb.utils.embedding_functions import register_embedding_function

from clrt.errors import InputError
from clrt.text import SentenceEncoder


@register_embedding_function  # type: ignore[untyped-decorator, unused-ignore]
class ClrtEmbeddingFunction(EmbeddingFunction[Documents]):  # type: ignore[misc]
    """An embedding function for Chroma's collections, which store how to make it anew.

    Args:
        model: A path or a name, as for `SentenceEncoder`.
        normalize_embeddings: Vectors get unit length.
        options: Arguments of `SentenceEncoder`, such as `device`: numbers, text, lists, dicts.
    """

    def __init__(
        self, model: str = "all-MiniLM-L6-v2", normalize_embeddings: bool = False, **options: Any
    ) -> None:
        kinds = (str, int, float, bool, list, dict, type(None))
        odd = [name for name, value in options.items() if not isinstance(value, kinds)]
        if odd:
            raise InputError(f"Chroma cannot store {', '.join(odd)}; give text or numbers.")
        self._config = {
            "model": model,
            "normalize_embeddings": normalize_embeddings,
            "options": options,
        }
        self._normalize = normalize_embeddings
        self.encoder = SentenceEncoder(model, **options)

    def __call__(self, input: Documents) -> Embeddings:
        """The vectors of documents, with the model's prompt for those."""
        return self._rows(self.encoder.encode_document, input)

    def embed_query(self, input: Documents) -> Embeddings:
        """The vectors of queries, with the model's prompt for those."""
        return self._rows(self.encoder.encode_query, input)

    @staticmethod
    def name() -> str:
        """The name by which collections find this function again."""
        return "clrt"

    def default_space(self) -> Space:
        """The distance that fits these vectors."""
        return "cosine"

    def get_config(self) -> dict[str, Any]:
        """What `build_from_config` makes this function of."""
        return self._config

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> ClrtEmbeddingFunction:
        """The function that `get_config` described."""
        normalize = config["normalize_embeddings"]
        return ClrtEmbeddingFunction(config["model"], normalize, **config["options"])

    def _rows(self, encode: Any, texts: Documents) -> Embeddings:
        return list(encode(list(texts), normalize_embeddings=self._normalize))

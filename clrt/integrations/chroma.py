"""Chroma embedding function."""

from __future__ import annotations

from typing import Any

from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
from chromadb.utils.embedding_functions import register_embedding_function

from clrt.errors import InputError
from clrt.text import SentenceEncoder


@register_embedding_function  # type: ignore[untyped-decorator, unused-ignore]
class ClrtEmbeddingFunction(EmbeddingFunction[Documents]):  # type: ignore[misc]
    """Embedding function for Chroma; a collection stores its configuration to create it again.

    Args:
        model: Path or name of a sentence encoder, as in `SentenceEncoder`.
        normalize_embeddings: Whether to L2-normalize vectors.
        options: Keyword arguments passed to `SentenceEncoder`, such as `device`; JSON values only.

    Raises:
        InputError: An option is not a JSON value.
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
        """Computes the vectors of documents, with the model's document prompt."""
        return self._rows(self.encoder.encode_document, input)

    def embed_query(self, input: Documents) -> Embeddings:
        """Computes the vectors of queries, with the model's query prompt."""
        return self._rows(self.encoder.encode_query, input)

    @staticmethod
    def name() -> str:
        """Returns the name under which Chroma registers this class."""
        return "clrt"

    def default_space(self) -> Space:
        """Returns the default distance function of collections: cosine."""
        return "cosine"

    def get_config(self) -> dict[str, Any]:
        """Returns the JSON configuration that `build_from_config` accepts."""
        return self._config

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> ClrtEmbeddingFunction:
        """Creates an embedding function from a configuration that `get_config` returned."""
        normalize = config["normalize_embeddings"]
        return ClrtEmbeddingFunction(config["model"], normalize, **config["options"])

    def _rows(self, encode: Any, texts: Documents) -> Embeddings:
        return list(encode(list(texts), normalize_embeddings=self._normalize))

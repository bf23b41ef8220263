"""Base class of encoders: query and document prompts, and the similarity of vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from clrt.text.config import EncoderConfig, SparseConfig
from clrt.text.sentence_transformers_compat import accepts_old_names
from clrt.text.similarity import SIMILARITIES, Vectors, similarity_name
from clrt.text.text_model import LoadOptions, TextModel
from clrt.text.torch_interop import SimilarityArray


class Embedder(TextModel):
    """Base class of dense and sparse text encoders, which compute one vector per text."""

    _prompt_names = ("query", "document")
    _settable = (*TextModel._settable, "similarity_fn_name")
    _default_similarity: ClassVar[str]

    def __init__(
        self, config: EncoderConfig | SparseConfig, options: LoadOptions, similarity: object
    ) -> None:
        stored = config.similarity if config.similarity in SIMILARITIES else None
        name = similarity or stored or self._default_similarity
        self._similarity = similarity_name(name)
        super().__init__(config, options)

    def encode(self, inputs: Any, *args: Any, **options: Any) -> Any:
        """Computes the vector of one text or the vectors of several; subclasses implement it.

        Args:
            inputs: One string, or an iterable of strings.
            args: Positional arguments of the subclass's `encode`.
            options: Keyword arguments of the subclass's `encode`.
        """
        raise NotImplementedError

    @accepts_old_names(sentences="inputs")
    def encode_query(
        self, inputs: Any, prompt_name: str | None = None, *args: Any, **options: Any
    ) -> Any:
        """Computes the vectors of queries: `encode` with the prompt named "query", if there is one.

        Args:
            inputs: One string, or an iterable of strings.
            prompt_name: Name of another prompt to use instead; a `prompt` overrides both. None uses
                the prompt "query".
            args: Positional arguments passed to `encode` after `prompt_name`.
            options: Keyword arguments passed to `encode`.
        """
        name = self._own_prompt(("query",), prompt_name, args, options)
        return self.encode(inputs, name, *args, **options)

    @accepts_old_names(sentences="inputs")
    def encode_document(
        self, inputs: Any, prompt_name: str | None = None, *args: Any, **options: Any
    ) -> Any:
        """Computes the vectors of documents: `encode` with a document prompt, if there is one.

        The document prompt is named "document", "passage" or "corpus"; the first name that the
        model has is used.

        Args:
            inputs: One string, or an iterable of strings.
            prompt_name: Name of another prompt to use instead; a `prompt` overrides both. None uses
                the document prompt.
            args: Positional arguments passed to `encode` after `prompt_name`.
            options: Keyword arguments passed to `encode`.
        """
        name = self._own_prompt(("document", "passage", "corpus"), prompt_name, args, options)
        return self.encode(inputs, name, *args, **options)

    def _own_prompt(
        self,
        names: Sequence[str],
        asked: str | None,
        args: Sequence[Any],
        options: Mapping[str, Any],
    ) -> str | None:
        """Returns the `prompt_name` for `encode_query` or `encode_document`.

        Args:
            names: Candidate prompt names, in order of preference.
            asked: The caller's `prompt_name`; None if the caller passed none.
            args: The caller's positional arguments after `prompt_name`; the first one is `prompt`.
            options: The caller's keyword arguments.

        Returns:
            `asked` if the caller passed `prompt_name` or `prompt`; else the first of `names` that
            is in `prompts`; None if there is no such prompt.
        """
        prompt = args[0] if args else options.get("prompt")
        if asked is not None or prompt is not None:
            return asked
        return next((name for name in names if name in self.prompts), None)

    @property
    def similarity_fn_name(self) -> str:
        """Name of the similarity function: "cosine", "dot", "euclidean" or "manhattan".

        Settable; it selects what `similarity` and `similarity_pairwise` compute.
        """
        return self._similarity

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: object) -> None:
        self._similarity = similarity_name(name)

    def similarity(self, embeddings1: Vectors, embeddings2: Vectors) -> SimilarityArray:
        """Computes the similarity of each vector of one set with each vector of another set.

        Args:
            embeddings1: Result of `encode`, [n, size] or [size].
            embeddings2: Result of `encode`, [m, size] or [size].

        Returns:
            float32 [len(embeddings1), len(embeddings2)]; a torch tensor if an argument is one.
        """
        return SIMILARITIES[self._similarity][0](embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Vectors, embeddings2: Vectors) -> SimilarityArray:
        """Computes the similarity of the vectors at equal indices of two sets.

        Args:
            embeddings1: Result of `encode`, [vectors, size].
            embeddings2: As many vectors, [vectors, size].

        Returns:
            float32 [vectors]; a torch tensor if an argument is one.
        """
        return SIMILARITIES[self._similarity][1](embeddings1, embeddings2)

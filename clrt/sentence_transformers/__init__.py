"""Drop-in replacement of sentence-transformers for inference.

from clrt.sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder, util

For programs that cannot be edited, `install()` registers this package under the name
`sentence_transformers`, and so does `python -m clrt.sentence_transformers PROGRAM …`. Training is
not supported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from enum import Enum
from typing import Any

from clrt.errors import ClrtError, InputError
from clrt.sentence_transformers import util
from clrt.text import CrossEncoder, SentenceEncoder, SparseEncoder
from clrt.text.quantize import quantize_embeddings
from clrt.text.sentence_transformers_compat import device_name
from clrt.text.similarity import SIMILARITIES, Similarity, similarity_name

__version__ = "6.2.0"  # The sentence-transformers release that results match.

__all__ = [
    "CrossEncoder",
    "SentenceTransformer",
    "SimilarityFunction",
    "SparseEncoder",
    "install",
    "quantize_embeddings",
    "util",
]

_NAME = "sentence_transformers"
_MODULES = ("cross_encoder", "quantization", "sparse_encoder", "util")


class SimilarityFunction(Enum):
    """Similarity functions of vectors, by name."""

    COSINE = "cosine"
    DOT_PRODUCT = "dot"
    DOT = "dot"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"

    @staticmethod
    def to_similarity_fn(name: object) -> Similarity:
        """Returns the function that compares all pairs of two sets of vectors.

        Args:
            name: Name of a similarity function, or a member of this enum.
        """
        return SIMILARITIES[similarity_name(name)][0]

    @staticmethod
    def to_similarity_pairwise_fn(name: object) -> Similarity:
        """Returns the function that compares vectors at equal indices of two sets.

        Args:
            name: Name of a similarity function, or a member of this enum.
        """
        return SIMILARITIES[similarity_name(name)][1]

    @staticmethod
    def possible_values() -> list[str]:
        """Returns the names of all similarity functions."""
        return list(SIMILARITIES)


class SentenceTransformer(SentenceEncoder):
    """`SentenceEncoder` with the name and further methods of sentence-transformers' class."""

    def to(self, device: Any) -> SentenceTransformer:
        """Returns this encoder unchanged; a model cannot be moved to another device.

        Raises:
            InputError: `device` is not the device that the model runs on.
        """
        self._request(1, "", None, None, None, device)
        return self

    def eval(self) -> SentenceTransformer:
        """Returns this encoder unchanged; there is no training mode."""
        return self

    def start_multi_process_pool(
        self, target_devices: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        """Returns a placeholder pool for `encode` and `encode_multi_process`; starts no process.

        Args:
            target_devices: At most one device.

        Raises:
            InputError: There are several devices.
        """
        asked = {str(device_name(device)) for device in target_devices or ()}
        if len(asked) > 1:
            raise InputError(
                "One model runs on one device; create a SentenceTransformer for each of "
                f"{', '.join(sorted(asked))}."
            )
        return {"processes": []}

    @staticmethod
    def stop_multi_process_pool(pool: dict[str, Any]) -> None:
        """Does nothing: a placeholder pool has no process to stop."""

    def encode_multi_process(self, sentences: Any, pool: Any, *args: Any, **options: Any) -> Any:
        """Calls `encode` in this process, as one process suffices to keep the device busy.

        Args:
            sentences: Sentences to encode.
            pool: Ignored.
            args: Positional arguments passed to `encode`.
            options: Keyword arguments passed to `encode`.
        """
        return self.encode(sentences, *args, pool=pool, **options)


def install() -> None:
    """Registers this package as `sentence_transformers` for later imports.

    Raises:
        ClrtError: sentence-transformers itself is imported already.
    """
    here = sys.modules[__name__]
    if sys.modules.get(_NAME, here) is not here:
        raise ClrtError(
            f"{_NAME} is already imported; call clrt.sentence_transformers.install() earlier."
        )
    sys.modules[_NAME] = here
    for name in _MODULES:
        sys.modules[f"{_NAME}.{name}"] = importlib.import_module(f"{__name__}.{name}")

"""Drop-in replacement of sentence-transformers for inference.

from clrt.sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder, util

For programs that cannot be edited, `install()` registers it as `sentence_transformers`, and so
does `python -m clrt.sentence_transformers PROGRAM …`. Training is not supported.
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
    """Names of similarity functions."""

    COSINE = "cosine"
    DOT_PRODUCT = "dot"
    DOT = "dot"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"

    @staticmethod
    def to_similarity_fn(name: object) -> Similarity:
        """Returns the similarity function of all pairs of two sets of vectors."""
        return SIMILARITIES[similarity_name(name)][0]

    @staticmethod
    def to_similarity_pairwise_fn(name: object) -> Similarity:
        """Returns the similarity function of vectors at equal indices."""
        return SIMILARITIES[similarity_name(name)][1]

    @staticmethod
    def possible_values() -> list[str]:
        """Returns the names."""
        return list(SIMILARITIES)


class SentenceTransformer(SentenceEncoder):
    """`SentenceEncoder` under sentence-transformers' name, with more methods of that class."""

    def to(self, device: Any) -> SentenceTransformer:
        """Returns itself; a model cannot be moved.

        Raises:
            InputError: The model runs on another device.
        """
        self._request(1, "", None, None, None, device)
        return self

    def eval(self) -> SentenceTransformer:
        """Returns itself; there is no training mode."""
        return self

    def start_multi_process_pool(
        self, target_devices: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        """Returns a placeholder pool for `encode` and `encode_multi_process`; starts no process.

        Raises:
            InputError: `target_devices` names several devices.
        """
        asked = {str(device_name(device)) for device in target_devices or ()}
        if len(asked) > 1:
            raise InputError(
                "One model runs on one device; make a SentenceTransformer for each of "
                f"{', '.join(sorted(asked))}."
            )
        return {"processes": []}

    @staticmethod
    def stop_multi_process_pool(pool: dict[str, Any]) -> None:
        """Does nothing; a pool holds no process."""

    def encode_multi_process(self, sentences: Any, pool: Any, *args: Any, **options: Any) -> Any:
        """Calls `encode` in this process, which keeps the device busy; `pool` is ignored."""
        return self.encode(sentences, *args, pool=pool, **options)


def install() -> None:
    """Registers this package as `sentence_transformers` for later imports.

    Raises:
        ClrtError: sentence-transformers itself is imported already.
    """
    here = sys.modules[__name__]
    if sys.modules.get(_NAME, here) is not here:
        raise ClrtError(
            f"{_NAME} is imported already; call clrt.sentence_transformers.install() before."
        )
    sys.modules[_NAME] = here
    for name in _MODULES:
        sys.modules[f"{_NAME}.{name}"] = importlib.import_module(f"{__name__}.{name}")

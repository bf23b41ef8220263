"""In the place of sentence-transformers: its names for running models, on clrt.

    from clrt.sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder, util

`install()` puts it under that package's name for programs that cannot be edited, and so does
`python -m clrt.sentence_transformers PROGRAM …`. What trains models is not there.
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

__version__ = "6.2.0"  # the release whose results these are

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
    """The similarities of vectors, by name."""

    COSINE = "cosine"
    DOT_PRODUCT = "dot"
    DOT = "dot"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"

    @staticmethod
    def to_similarity_fn(name: object) -> Similarity:
        """The similarity of all pairs of two sets."""
        return SIMILARITIES[similarity_name(name)][0]

    @staticmethod
    def to_similarity_pairwise_fn(name: object) -> Similarity:
        """The similarity of vectors in the same place."""
        return SIMILARITIES[similarity_name(name)][1]

    @staticmethod
    def possible_values() -> list[str]:
        """The names."""
        return list(SIMILARITIES)


class SentenceTransformer(SentenceEncoder):
    """`SentenceEncoder` by the name that programs use and look for, with what they do to models."""

    def to(self, device: Any) -> SentenceTransformer:
        """Itself, if it runs on that device.

        Raises:
            InputError: It runs on another one.
        """
        self._request(1, "", None, None, None, device)
        return self

    def eval(self) -> SentenceTransformer:
        """Itself: models of clrt do not train."""
        return self

    def start_multi_process_pool(
        self, target_devices: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        """A pool for `encode` and `encode_multi_process`: the device that the model has.

        Raises:
            InputError: Several devices are asked for.
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
        """Ends a pool, which holds nothing."""

    def encode_multi_process(self, sentences: Any, pool: Any, *args: Any, **options: Any) -> Any:
        """`encode`: one process keeps the device busy."""
        return self.encode(sentences, *args, pool=pool, **options)


def install() -> None:
    """Puts this package under the name `sentence_transformers`, for what is imported later.

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

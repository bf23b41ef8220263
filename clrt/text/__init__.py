"""Text models: sentence encoders, sparse encoders and cross-encoders."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clrt.text.cross_encoder import CrossEncoder
    from clrt.text.sentence_encoder import FloatArray, SentenceEncoder
    from clrt.text.sparse_encoder import SparseEncoder

__all__ = ["CrossEncoder", "FloatArray", "SentenceEncoder", "SparseEncoder"]

# Modules of the names, imported at first access so that one encoder does not import the others.
_HOMES = {
    "CrossEncoder": "clrt.text.cross_encoder",
    "FloatArray": "clrt.text.sentence_encoder",
    "SentenceEncoder": "clrt.text.sentence_encoder",
    "SparseEncoder": "clrt.text.sparse_encoder",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'clrt.text' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__]

"""Module `sentence_transformers.cross_encoder`."""

from clrt.text.cross_encoder import CrossEncoder

__all__ = ["CrossEncoder"]

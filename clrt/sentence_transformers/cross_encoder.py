"""Cross-encoders, by sentence-transformers' name for the module."""

from clrt.text.cross_encoder import CrossEncoder

__all__ = ["CrossEncoder"]

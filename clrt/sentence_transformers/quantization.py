"""Vectors in fewer bits, by sentence-transformers' name for the module."""

from clrt.text.quantize import quantize_embeddings

__all__ = ["quantize_embeddings"]

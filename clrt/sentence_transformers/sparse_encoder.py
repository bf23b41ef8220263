"""Sparse encoders, by sentence-transformers' name for the module."""

from clrt.text.sparse_encoder import SparseEncoder

__all__ = ["SparseEncoder"]

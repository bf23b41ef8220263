"""Module `sentence_transformers.sparse_encoder`."""

from clrt.text.sparse_encoder import SparseEncoder

__all__ = ["SparseEncoder"]

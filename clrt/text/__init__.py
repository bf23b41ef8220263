"""Text models: sentence encoders, sparse encoders and cross-encoders."""

from clrt.text.cross_encoder import CrossEncoder
from clrt.text.sentence_encoder import FloatArray, SentenceEncoder
from clrt.text.sparse_encoder import SparseEncoder

__all__ = ["CrossEncoder", "FloatArray", "SentenceEncoder", "SparseEncoder"]

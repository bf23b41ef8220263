"""Text models: sentences to vectors."""

from clrt.text.sentence_encoder import FloatArray, SentenceEncoder

__all__ = ["FloatArray", "SentenceEncoder"]

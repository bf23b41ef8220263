"""Module `sentence_transformers.quantization`."""

from clrt.text.quantize import quantize_embeddings

__all__ = ["quantize_embeddings"]

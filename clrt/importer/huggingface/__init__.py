"""Builds ONNX graphs of BERT-family encoders straight from Hugging Face checkpoints."""

from clrt.importer.huggingface.build import build_model, inline_weights

__all__ = ["build_model", "inline_weights"]

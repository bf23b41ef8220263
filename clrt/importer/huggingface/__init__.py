"""Builds graphs of BERT-family encoders straight from Hugging Face checkpoints."""

from clrt.importer.huggingface.import_checkpoint import import_checkpoint

__all__ = ["import_checkpoint"]

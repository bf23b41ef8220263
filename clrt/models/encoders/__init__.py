"""Builds graphs of encoders from checkpoints: BERT-like and sentence-transformers models."""

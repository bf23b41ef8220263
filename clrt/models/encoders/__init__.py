"""Graphs of encoders from checkpoints: BERT and its family, sentence-transformers folders."""

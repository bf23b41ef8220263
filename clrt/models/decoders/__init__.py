"""Builds graphs of language models over a cache in pages, from checkpoints."""

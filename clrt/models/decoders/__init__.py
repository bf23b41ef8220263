"""Builds graphs of language models with a paged KV cache from checkpoints."""

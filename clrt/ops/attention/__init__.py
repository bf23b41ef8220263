"""Attention, rotary position embeddings and KV caches."""

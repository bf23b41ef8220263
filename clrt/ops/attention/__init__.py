"""Attention, rotary embeddings and caches."""

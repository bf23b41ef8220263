"""Elementwise ops, casts and quantization."""

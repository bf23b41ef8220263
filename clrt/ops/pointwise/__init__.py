"""Elementwise ops, casts and quantisation."""

"""Searches the texts of a folder by what they mean: python -m examples.semantic_search."""

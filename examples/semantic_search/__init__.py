"""Semantic search in the texts of a folder: python -m examples.semantic_search."""

"""Decompositions: their registry, and rules for import and export."""

"""Reductions, cumulative sums and selection along an axis."""

"""Decompositions at import, which `clrt.ops.index` lists by op."""

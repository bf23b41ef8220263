"""Reverse-mode differentiation of graphs: the transform, and helpers of the ops' rules."""

"""Ops that create tensors, or return shapes and positions."""

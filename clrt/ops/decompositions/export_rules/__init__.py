"""Decompositions at export: replace ops that ONNX lacks with ops that it has."""

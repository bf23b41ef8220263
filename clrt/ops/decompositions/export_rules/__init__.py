"""Ops that ONNX lacks, as ops that it has."""

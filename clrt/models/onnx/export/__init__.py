"""Exports graphs as ONNX models."""

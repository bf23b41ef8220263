"""Imports ONNX files as graphs."""

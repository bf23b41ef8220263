"""Counterparts of ONNX Runtime's internal modules that programs import."""

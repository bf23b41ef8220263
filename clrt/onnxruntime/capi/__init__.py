"""The names under which programs find ONNX Runtime's inner modules."""

"""IR to ONNX."""

"""ONNX files to graphs."""

"""Ops of com.microsoft, as compositions of ONNX's."""

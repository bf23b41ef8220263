"""Ops of com.microsoft, composed of ONNX ops."""

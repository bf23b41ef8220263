"""The part of `onnxruntime.transformers` that programs use to run models."""

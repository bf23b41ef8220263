"""The part of `onnxruntime.transformers` that programs run models with."""

"""Model files to graphs: ONNX, Hugging Face folders, GGUF, compiled models; and tokenizers."""

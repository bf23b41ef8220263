"""Readers of model files: ONNX (`onnx_importer`) and Hugging Face folders (`huggingface`)."""

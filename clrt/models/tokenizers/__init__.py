"""Tokenizers from tokenizer.json and GGUF metadata, checked before use."""

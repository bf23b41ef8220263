"""Builds graphs of encoders from Hugging Face checkpoints."""

"""Reads the files of Hugging Face model folders: checkpoints, configurations, other JSON."""

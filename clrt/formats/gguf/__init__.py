"""GGUF: the file, its metadata, and the codecs of its block types."""

"""GGUF: file reader, metadata, and codecs of the block types."""

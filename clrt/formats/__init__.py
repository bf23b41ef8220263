"""File codecs without IR: safetensors and GGUF."""

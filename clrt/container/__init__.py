"""Files that hold models: safetensors, and compiled models on top of it."""

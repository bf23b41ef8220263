"""LoRA adapters, merged into the weights of decoders as they are read."""

"""LoRA adapters, merged into the weights of decoders while these are read."""

"""Image ops: pooling, resizing, sampling, regions and boxes."""

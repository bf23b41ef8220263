"""Graph passes: one file each, the driver, and the pipeline."""

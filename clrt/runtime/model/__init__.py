"""`load` and `Model`."""

"""Signal processing ops."""

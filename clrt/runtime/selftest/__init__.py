"""Whether a device computes what it should: found at its first use, and remembered."""

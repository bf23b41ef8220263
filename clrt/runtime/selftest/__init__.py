"""Self-test of a device at its first use: kernels of each family are compared with NumPy."""

"""Self-test of a device: kernels of each family compared with NumPy at its first use."""

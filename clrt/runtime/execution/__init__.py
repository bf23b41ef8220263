"""Executes models: plans and their cache, bound kernels, arenas, and runs in flight."""

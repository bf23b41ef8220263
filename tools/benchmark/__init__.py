"""Benchmark sections of `tools/bench.py`, one file each."""

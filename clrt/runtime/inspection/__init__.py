"""Explains plans: where and by which kernel each node runs, and why."""

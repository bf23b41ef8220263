"""Runs of a model: its plans, the memory they take, and runs on their way."""

"""Normalizations, softmax and hardmax."""

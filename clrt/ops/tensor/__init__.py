"""Ops that make tensors, or tell of their shape and places."""

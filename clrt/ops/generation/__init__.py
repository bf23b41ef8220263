"""Ops for token generation."""

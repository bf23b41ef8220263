"""Ops on strings and tokens."""

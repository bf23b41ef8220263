"""Ops on texts."""

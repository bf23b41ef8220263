"""Ops that move elements without computing."""

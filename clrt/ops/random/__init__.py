"""Ops that draw random numbers."""

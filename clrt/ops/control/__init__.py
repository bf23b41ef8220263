"""Ops for control flow (If, Loop, Scan), sequences, optionals and maps."""

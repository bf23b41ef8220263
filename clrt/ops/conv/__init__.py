"""Convolutions, transposed convolutions and Col2Im."""

"""Integer division and rounding of sizes."""

from __future__ import annotations


def ceil_div(a: int, b: int) -> int:
    """Returns the quotient a / b, rounded up to an integer."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """Returns the smallest multiple of `b` that is at least `a`."""
    return ceil_div(a, b) * b

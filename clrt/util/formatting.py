"""Formats byte counts, FLOPs, seconds and shapes as text; parses byte counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clrt.errors import InputError
from clrt.util.env_vars import bytes_of


def format_bytes(count: int) -> str:
    """Formats a byte count: "1.5 GiB".

    The unit is the largest binary unit in which the number is at least 1.
    """
    for exponent, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << exponent:
            return f"{count / (1 << exponent):.1f} {unit}"
    return f"{count} B"


def format_flops(count: int) -> str:
    """Formats a number of floating-point operations, with its unit: "2.0 GFLOP"."""
    for exponent, unit in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if count >= 10**exponent:
            return f"{count / 10**exponent:.1f} {unit}FLOP"
    return f"{count} FLOP"


def format_seconds(seconds: float) -> str:
    """Formats a duration in s, ms or us: "1.5 ms".

    The unit is the largest of these in which the number is at least 1.
    """
    for exponent, unit in ((0, "s"), (3, "ms")):
        if seconds * 10**exponent >= 1:
            return f"{seconds * 10**exponent:.1f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def format_shapes(shapes: Mapping[str, Iterable[int]]) -> str:
    """Formats shapes in the syntax of the command line: input_ids=8x128,mask=8x128."""
    return ",".join(f"{name}={'x'.join(map(str, s))}" for name, s in shapes.items())


def parse_bytes(limit: int | str) -> int:
    """Parses a size in bytes: an int, or text such as "2GiB", "512 MiB" or "1.5e9".

    Raises:
        InputError: `limit` is not a size, or not positive.
    """
    try:
        return bytes_of(str(limit))
    except ValueError:
        message = f"'{limit}' is not a memory limit; pass bytes, or text such as '2GiB'."
        raise InputError(message) from None

"""Bytes, FLOPs, times and shapes as text; bytes from text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clrt.errors import InputError
from clrt.util.env_vars import bytes_of


def format_bytes(count: int) -> str:
    """Bytes in the largest binary unit that leaves at least one."""
    for exponent, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << exponent:
            return f"{count / (1 << exponent):.1f} {unit}"
    return f"{count} B"


def format_flops(count: int) -> str:
    """Floating-point operations in the largest unit that leaves at least one."""
    for exponent, unit in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if count >= 10**exponent:
            return f"{count / 10**exponent:.1f} {unit}FLOP"
    return f"{count} FLOP"


def format_seconds(seconds: float) -> str:
    """A short time in the largest unit that leaves at least one."""
    for exponent, unit in ((0, "s"), (3, "ms")):
        if seconds * 10**exponent >= 1:
            return f"{seconds * 10**exponent:.1f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def format_shapes(shapes: Mapping[str, Iterable[int]]) -> str:
    """Shapes as the command line takes them: input_ids=8x128,mask=8x128."""
    return ",".join(f"{name}={'x'.join(map(str, s))}" for name, s in shapes.items())


def parse_bytes(limit: int | str) -> int:
    """Returns a number of bytes from an int, or from text such as "2GiB", "512 MiB" or "1.5e9".

    Raises:
        InputError: It is neither, or not above 0.
    """
    try:
        return bytes_of(str(limit))
    except ValueError:
        message = f"'{limit}' is no memory limit; pass bytes, or text such as '2GiB'."
        raise InputError(message) from None

"""What a chat template may still spend."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

_WORK = 16 << 20
_WORK_PER_INPUT = 64
_MOST_SECONDS = 10.0
MOST_DEPTH = 100
"""Levels of lists in lists."""
MOST_BITS = 4096
"""Bits of a whole number."""
STEP = 32
"""What a step of a loop, a call or an element costs, in characters."""


class TooMuchError(Exception):
    """A template asks for more than its budget."""


class Budget:
    """What one rendering may still spend: characters and elements read or made, and seconds.

    Args:
        inputs: What the template is given. Their size adds to the budget.
    """

    def __init__(self, inputs: object) -> None:
        self._known: dict[int, tuple[object, int, int]] = {}
        self._most = 1 << 62
        self._most = _WORK + _WORK_PER_INPUT * self.measure(inputs)[0]
        self._left = self._most
        self._end = time.monotonic() + _MOST_SECONDS

    def spend(self, work: int) -> None:
        """Spends that much.

        Raises:
            TooMuchError: There is less, or the time is over.
        """
        self._left -= max(work, 0) + 1
        if self._left < 0 or time.monotonic() > self._end:
            raise TooMuchError

    def made(self, value: Any) -> Any:
        """The value, once it is paid for: a list for its elements, and not for what they hold.

        Raises:
            TooMuchError: It cannot be paid, or it would be too large if it were written out.
        """
        self.measure(value)
        self.spend(length(value))
        return value

    def read(self, value: Any) -> Any:
        """The value, once it is paid for as what is written out or compared."""
        self.spend(self.measure(value)[0])
        return value

    def size(self, values: Iterable[object]) -> int:
        """The characters of values that are written out."""
        return sum(self.measure(value)[0] for value in values)

    def measure(self, value: object, level: int = 0) -> tuple[int, int]:
        """About the characters of a value that is written out, and how deep it is nested.

        What a list holds twice counts twice: such lists in such lists grow fast. Lists and
        mappings of templates do not change, so each is measured once.

        Raises:
            TooMuchError: It is nested too deep, has more characters than the whole budget, or has
                a number that is too long.
        """
        if isinstance(value, str | bytes):
            return len(value) + 1, 0
        if isinstance(value, int):
            if value.bit_length() > MOST_BITS:
                raise TooMuchError
            return 1 + value.bit_length() // 3, 0
        if not isinstance(value, list | tuple | Mapping | AbstractSet) and not _is_view(value):
            return 1, 0
        known = self._known.get(id(value))
        if known is not None:
            return known[1:]
        if level > MOST_DEPTH:
            raise TooMuchError
        held = (x for pair in value.items() for x in pair) if isinstance(value, Mapping) else value
        total, depth = 1, 0
        for one in held:  # type: ignore[attr-defined]
            size, inner = self.measure(one, level + 1)
            total, depth = total + size, max(depth, inner + 1)
            if total > self._most or depth > MOST_DEPTH:
                raise TooMuchError
        self._known[id(value)] = value, total, depth
        return total, depth


def length(value: object) -> int:
    """Characters of a text, `STEP` for each element of a list, 1 for other values."""
    if isinstance(value, str | bytes):
        return len(value)
    sized = isinstance(value, Sequence | Mapping | AbstractSet)
    return STEP * len(value) if sized else 1  # type: ignore[arg-type]


def lengths(values: Iterable[object]) -> int:
    return sum(map(length, values))


def _is_view(value: object) -> bool:
    return type(value) in (type({}.keys()), type({}.values()), type({}.items()))

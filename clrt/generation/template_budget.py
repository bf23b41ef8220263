"""Work and time budget of rendering a chat template."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

# Work allowed per rendering in characters and elements: a fixed part, and a multiple of the inputs.
_WORK = 16 << 20
_WORK_PER_INPUT = 64
# Time limit of a rendering in seconds.
_MAX_SECONDS = 10.0
MAX_DEPTH = 100
"""Maximum nesting depth of lists and mappings."""
MAX_BITS = 4096
"""Maximum size of an integer, in bits."""
STEP = 32
"""Cost of a loop iteration, a call or an element, in characters."""


class TooMuchError(Exception):
    """Raised if a chat template exceeds its `Budget`, or is too large or nested too deep."""


class Budget:
    """Remaining work and time of rendering a chat template once.

    Work is the number of characters and elements that the template reads or creates.

    Args:
        inputs: Variables of the template; the budget increases with their size.
    """

    def __init__(self, inputs: object) -> None:
        self._sizes: dict[int, tuple[object, int, int]] = {}
        self._total = 1 << 62
        self._total = _WORK + _WORK_PER_INPUT * self.measure(inputs)[0]
        self._remaining = self._total
        self._end = time.monotonic() + _MAX_SECONDS

    def spend(self, work: int) -> None:
        """Subtracts `work`, in characters, from the budget.

        Raises:
            TooMuchError: No work or time is left.
        """
        self._remaining -= max(work, 0) + 1
        if self._remaining < 0 or time.monotonic() > self._end:
            raise TooMuchError

    def made(self, value: Any) -> Any:
        """Charges a value that the template created, by its length; returns the value.

        The contents of nested values are not charged.

        Raises:
            TooMuchError: The budget is exceeded, or the value would be too large when written out.
        """
        self.measure(value)
        self.spend(length(value))
        return value

    def read(self, value: Any) -> Any:
        """Charges a value that is output or compared, by its size as text; returns the value.

        Raises:
            TooMuchError: The budget is exceeded.
        """
        self.spend(self.measure(value)[0])
        return value

    def size(self, values: Iterable[object]) -> int:
        """Returns the approximate total size of values as text, in characters."""
        return sum(self.measure(value)[0] for value in values)

    def measure(self, value: object, level: int = 0) -> tuple[int, int]:
        """Returns the approximate size of a value as text, in characters, and its nesting depth.

        Shared elements count each time they occur. Lists and mappings of templates are immutable,
        so results are cached by identity.

        Args:
            value: The value.
            level: Nesting level of `value` in an outer value; 0 for none.

        Raises:
            TooMuchError: The value is nested too deep, is larger than the whole budget, or contains
                too large an integer.
        """
        if isinstance(value, str | bytes):
            return len(value) + 1, 0
        if isinstance(value, int):
            if value.bit_length() > MAX_BITS:
                raise TooMuchError
            return 1 + value.bit_length() // 3, 0
        if not isinstance(value, list | tuple | Mapping | AbstractSet) and not _is_view(value):
            return 1, 0
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1:]
        if level > MAX_DEPTH:
            raise TooMuchError
        elements = (
            (x for pair in value.items() for x in pair) if isinstance(value, Mapping) else value
        )
        total, depth = 1, 0
        for element in elements:  # type: ignore[attr-defined]
            size, inner = self.measure(element, level + 1)
            total, depth = total + size, max(depth, inner + 1)
            if total > self._total or depth > MAX_DEPTH:
                raise TooMuchError
        self._sizes[id(value)] = value, total, depth
        return total, depth


def length(value: object) -> int:
    """Returns the cost of a value: its characters, `STEP` per element of a container, else 1."""
    if isinstance(value, str | bytes):
        return len(value)
    sized = isinstance(value, Sequence | Mapping | AbstractSet)
    return STEP * len(value) if sized else 1  # type: ignore[arg-type]


def lengths(values: Iterable[object]) -> int:
    return sum(map(length, values))


def _is_view(value: object) -> bool:
    return type(value) in (type({}.keys()), type({}.values()), type({}.items()))

"""Kernels with `T_` macros: their defaults, and the values that `clrt tune` tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TUNED: dict[str, TunedKernel] = {}
# Largest number of a record for a macro whose choices are not listed, over its default.
_MOST_TIMES_DEFAULT = 4


@dataclass(frozen=True)
class TunedKernel:
    """A kernel whose macros are chosen per device.

    Attributes:
        entry: Its entry point, by which records name it.
        defaults: Values that are right where nothing is known of the device.
        choices: What to try, for those macros that are worth it. T_VW, where it is one of them,
            is kept within the lanes that the device's compiler uses.
    """

    entry: str
    defaults: Mapping[str, int]
    choices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def with_record(self, record: Mapping[str, int]) -> dict[str, int]:
        """Returns the defaults, overridden by a tuning record.

        Raises:
            ValueError: The record names a macro that the kernel does not have.
        """
        unknown = sorted(record.keys() - self.defaults.keys())
        if unknown:
            raise ValueError(
                f"a tuning record of {self.entry} sets {', '.join(unknown)}; "
                f"it has {', '.join(self.defaults)}"
            )
        return {**self.defaults, **record}

    def check(self, record: Mapping[str, int]) -> None:
        """Checks a record that was read from a file.

        Raises:
            ValueError: As `with_record`, or the record sets a macro to a number that no kernel is
                built with.
        """
        self.with_record(record)
        for macro, value in record.items():
            if not self._fits(macro, value):
                raise ValueError(f"a tuning record of {self.entry} sets {macro} to {value}")

    def _fits(self, macro: str, value: int) -> bool:
        """Whether a number is near those that a macro is known to have, and of their kind.

        Lanes and work-items are powers of two; a kernel of others would compute wrong sums.
        """
        default, choices = self.defaults[macro], self.choices.get(macro, ())
        most = max(choices) if choices else _MOST_TIMES_DEFAULT * default
        powers = all(n & (n - 1) == 0 for n in (default, *choices))
        least = min(default, *choices) if choices and powers else 1
        return least <= value <= max(most, default) and not (powers and value & (value - 1))


def tuned(
    entry: str, choices: Mapping[str, tuple[int, ...]] | None = None, **defaults: int
) -> TunedKernel:
    """Declares a kernel's tunables, once, beside the code that launches it."""
    kernel = TUNED[entry] = TunedKernel(entry, defaults, choices or {})
    return kernel

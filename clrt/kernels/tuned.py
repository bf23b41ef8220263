"""Kernels with `T_` macros: their defaults, and the values that `clrt tune` tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TUNED: dict[str, TunedKernel] = {}


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
        """The defaults, overridden by a tuning record.

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


def tuned(
    entry: str, choices: Mapping[str, tuple[int, ...]] | None = None, **defaults: int
) -> TunedKernel:
    """Declares a kernel's tunables, once, beside the code that launches it."""
    kernel = TUNED[entry] = TunedKernel(entry, defaults, choices or {})
    return kernel

"""Kernels with tunables (`T_` macros): default values, and candidates that `clrt tune` measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from clrt.kernels.thresholds import Tunable
from clrt.util.fast_dataclass import dataclass

TUNED: dict[str, TunedKernel] = {}
# Maximum value in a record of a macro without listed choices, as a multiple of its default.
_MAX_TIMES_DEFAULT = 4
# Macro -> (unit, how its value is chosen), for macros that mean the same in every kernel.
_COMMON = {
    "T_VW": ("lanes", "Elements per vector: as many as a vector register of the compiler holds."),
    "T_MR": ("rows", "Rows of a register tile: more reuse each load, until registers spill."),
    "T_NV": ("vectors", "Vectors of columns processed together, as far as registers permit."),
    "T_MC": ("row blocks", "Blocks of T_MR rows per chunk, whose panel of B stays in cache."),
    "T_KU": ("steps of K", "Unrolled steps: hides loop overhead."),
    "T_ITEMS": ("work-items", "Size of a work-group: enough to hide the latency of memory."),
    "T_RM": (
        "rows",
        "Rows of the tile of a work-item: more reuse each load, until registers spill.",
    ),
    "T_RN": ("columns", "Columns of the tile of a work-item, as for T_RM."),
    "T_TK": ("elements of K", "Depth of a slice in local memory: fewer barriers, more memory."),
    "T_ROWS": ("rows", "Rows that a work-group processes: amortizes its start."),
}


@dataclass(frozen=True)
class TunedKernel:
    """A kernel whose `T_` macros are chosen per device.

    Attributes:
        entry: Entry point, which is the kernel's name in tuning records.
        defaults: Values for devices without a record.
        choices: Candidate values of the macros that are worth tuning. Candidates of T_VW are
            limited to the float lanes of the device.
        declared: Declarations of the macros, by name.
    """

    entry: str
    defaults: Mapping[str, int]
    choices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    declared: Mapping[str, Tunable] = field(default_factory=dict)

    def with_record(self, record: Mapping[str, int]) -> dict[str, int]:
        """Returns the values of all tunables: defaults, overridden by a tuning record.

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
        """Checks the names and values of a tuning record that was read from a file.

        Raises:
            ValueError: The record names an unknown macro, or its value is outside the plausible
                range.
        """
        self.with_record(record)
        for macro, value in record.items():
            if not self._fits(macro, value):
                raise ValueError(f"a tuning record of {self.entry} sets {macro} to {value}")

    def _fits(self, macro: str, value: int) -> bool:
        """Returns whether a value is plausible for a tunable.

        The value must be at least 1 and at most the largest candidate or the default; without
        candidates, at most four times the default. If the default and all candidates are powers of
        two, as for lanes and work-items, the value must be one, too, and at least the smallest of
        these numbers: the kernel would otherwise compute wrong sums.
        """
        default, choices = self.defaults[macro], self.choices.get(macro, ())
        highest = max(choices) if choices else _MAX_TIMES_DEFAULT * default
        powers = all(n & (n - 1) == 0 for n in (default, *choices))
        lowest = min(default, *choices) if choices and powers else 1
        return lowest <= value <= max(highest, default) and not (powers and value & (value - 1))


def tuned(
    entry: str, choices: Mapping[str, tuple[int, ...]] | None = None, **defaults: int | Tunable
) -> TunedKernel:
    """Registers the tunables of a kernel; called once, in the module that launches the kernel.

    Args:
        entry: Entry point of the kernel.
        choices: Candidate values that `clrt tune` measures, by macro; None for none.
        defaults: Declaration of each macro; the default value alone if the macro means the same in
            every kernel.
    """
    declared = {
        macro: d if isinstance(d, Tunable) else Tunable(d, *_COMMON[macro])
        for macro, d in defaults.items()
    }
    values = {macro: d.default for macro, d in declared.items()}
    kernel = TUNED[entry] = TunedKernel(entry, values, choices or {}, declared)
    return kernel

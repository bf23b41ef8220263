"""Tunables that are not macros: numbers that decide tiles, partitions, splits and kernel choice.

A group of thresholds is a class beside its kernels. Each field is declared by `tunable`, with its
unit and the reason for its value; a tuning record under the name of the group overrides it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, TypeVar, cast

from clrt.ir.stored_functions import StorableConstant
from clrt.util.fast_dataclass import dataclass

T = TypeVar("T", bound="Thresholds")
# Maximum value of thresholds, so that products of two of them fit in 64 bits.
_MAX_VALUE = (1 << 31) - 1
GROUPS: dict[str, type[Thresholds]] = {}
"""Classes of thresholds by group name."""


@dataclass(frozen=True)
class Tunable:
    """Declaration of a number that decides performance, not results.

    Attributes:
        default: Value on devices without a tuning record.
        unit: What the number counts, such as "rows".
        reason: What the number decides, and why the default is as it is.
        most: Maximum value in the record of a threshold.
    """

    default: int
    unit: str
    reason: str
    most: int = _MAX_VALUE


def tunable(default: int, unit: str, reason: str, *, most: int = _MAX_VALUE) -> Any:
    """Declares a field of `Thresholds`; the arguments are the attributes of its `Tunable`."""
    return Tunable(default, unit, reason, most)


class Thresholds(StorableConstant):
    """Base class of a group of thresholds: every field is an int declared by `tunable`.

    Immutable, and equal to others of its class with equal values. It is no dataclass, because
    creating that many dataclasses takes 10 ms at import.

    Attributes:
        group: Name of the group in tuning records.
    """

    group: ClassVar[str]
    _tunables: ClassVar[dict[str, Tunable]] = {}

    def __init__(self, **values: int) -> None:
        """Creates thresholds with default values except for `values`, by field name.

        Raises:
            TypeError: There is no field of a name.
        """
        unknown = sorted(values.keys() - self._tunables.keys())
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(unknown)}")
        vars(self).update(values)

    def __init_subclass__(cls) -> None:
        if GROUPS.setdefault(cls.group, cls) is not cls:
            raise TypeError(f"two classes of thresholds have the group '{cls.group}'")
        declared = {n: v for n, v in vars(cls).items() if isinstance(v, Tunable)}
        cls._tunables = cls._tunables | declared
        for name, each in declared.items():
            setattr(cls, name, each.default)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        values = zip(self._tunables, self._values(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{n}={v}' for n, v in values)})"

    def stored_fields(self) -> Mapping[str, int]:
        return dict(zip(self._tunables, self._values(), strict=True))

    def _values(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in self._tunables)

    @classmethod
    def of(cls: type[T], record: Mapping[str, int]) -> T:
        """Returns the thresholds of this class: default values, overridden by a tuning record.

        Args:
            record: Values by field name; other names are ignored.
        """
        if not record:
            return cast(T, _default(cls.group))
        return cls(**{name: record[name] for name in cls.declared().keys() & record.keys()})

    @classmethod
    def declared(cls) -> Mapping[str, Tunable]:
        """Returns the declarations of the fields, by name."""
        return cls._tunables

    @classmethod
    def check(cls, record: Mapping[str, int]) -> None:
        """Checks the names and values of a tuning record for this group of thresholds.

        Raises:
            ValueError: The record sets an unknown name, or a number that is not positive or exceeds
                the maximum of the threshold.
        """
        unknown = sorted(record.keys() - cls.declared().keys())
        if unknown:
            raise ValueError(f"a tuning record of {cls.group} sets {', '.join(unknown)}")
        for name, value in record.items():
            if not 0 < value <= cls.declared()[name].most:
                raise ValueError(f"a tuning record of {cls.group} sets {name} to {value}")


@cache
def _default(group: str) -> Any:
    return GROUPS[group]()

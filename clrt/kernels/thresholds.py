"""Thresholds: measured numbers that decide the partition of launches and the choice of kernels.

Unlike tunables, thresholds are not macros of a kernel. `cpu.json` has their default values; a
tuning record under the name of a group of thresholds overrides them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, TypeVar, cast

T = TypeVar("T", bound="Thresholds")
# Maximum value of a threshold, so that products of two of them fit in 64 bits.
_MAX_VALUE = (1 << 31) - 1
GROUPS: dict[str, type[Thresholds]] = {}
"""Classes of thresholds by group name."""


@dataclass(frozen=True)
class Thresholds:
    """Base class of a group of thresholds; tuning records may set its integer fields.

    Attributes:
        group: Name of the group in `cpu.json` and in tuning records.
    """

    group: ClassVar[str]

    def __init_subclass__(cls) -> None:
        GROUPS[cls.group] = cls

    @classmethod
    def of(cls: type[T], record: Mapping[str, int]) -> T:
        """Returns the thresholds of this class: default values, overridden by a tuning record.

        Args:
            record: Values by field name; other names are ignored.
        """
        overrides = {name: record[name] for name in _names(cls.group) & record.keys()}
        if not overrides:
            return cast(T, _default(cls.group))
        return cls(**{**_shipped("cpu")[cls.group], **overrides})

    @classmethod
    def check(cls, record: Mapping[str, int]) -> None:
        """Checks the names and values of a tuning record for this group of thresholds.

        Raises:
            ValueError: The record sets an unknown name, or a number that is not positive or exceeds
                31 bits.
        """
        unknown = sorted(record.keys() - _names(cls.group))
        if unknown:
            raise ValueError(f"a tuning record of {cls.group} sets {', '.join(unknown)}")
        for name, value in record.items():
            if not 0 < value <= _MAX_VALUE:
                raise ValueError(f"a tuning record of {cls.group} sets {name} to {value}")


@cache
def _names(group: str) -> frozenset[str]:
    return frozenset(f.name for f in fields(GROUPS[group]) if f.type == "int")


@cache
def _default(group: str) -> Any:
    return GROUPS[group](**_shipped("cpu")[group])


@cache
def _shipped(kind: str) -> dict[str, dict[str, Any]]:
    text = files("clrt.kernels").joinpath(f"{kind}.json").read_text("utf-8")
    return cast("dict[str, dict[str, Any]]", json.loads(text))

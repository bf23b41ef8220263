"""Thresholds: numbers, measured on some machine, by which launches are shared out.

They are no macros of a kernel. `cpu.json` has their values for devices of that class; a tuning
record under the name of a group sets others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, TypeVar, cast

T = TypeVar("T", bound="Thresholds")
# A threshold's largest number: products of two of them stay within 64 bits.
_MOST = (1 << 31) - 1
GROUPS: dict[str, type[Thresholds]] = {}


@dataclass(frozen=True)
class Thresholds:
    """A group of them. Those that are integers may stand in tuning records."""

    group: ClassVar[str]

    def __init_subclass__(cls) -> None:
        GROUPS[cls.group] = cls

    @classmethod
    def of(cls: type[T], record: Mapping[str, int]) -> T:
        """The group, with what a tuning record sets of it."""
        own = {name: record[name] for name in _names(cls.group) & record.keys()}
        return cls(**{**_shipped("cpu")[cls.group], **own}) if own else cast(T, _default(cls.group))

    @classmethod
    def check(cls, record: Mapping[str, int]) -> None:
        """Refuses a record that sets something else.

        Raises:
            ValueError: It does, or sets a number that is not positive, or past 32 bits.
        """
        unknown = sorted(record.keys() - _names(cls.group))
        if unknown:
            raise ValueError(f"a tuning record of {cls.group} sets {', '.join(unknown)}")
        for name, value in record.items():
            if not 0 < value <= _MOST:
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

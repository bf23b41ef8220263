"""Lists tunables: macros of kernels and thresholds, with values on a device and their source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from clrt.device.caps import DeviceCaps
from clrt.kernels.thresholds import GROUPS, Tunable
from clrt.kernels.tuned import TUNED
from clrt.kernels.tuning_records import find_record
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class TunableValue:
    """A tunable and its value on a device.

    Attributes:
        kernel: Entry point of the kernel, or name of a group of thresholds: the record's "kernel".
        name: Macro, or threshold: a key of the record's "tunables".
        declared: Default value, unit and reason.
        value: Value on the device.
        source: Whether the value is the default or comes from a record shipped with clrt or from
            one in the user's file.
        record: Text for the tuning record that sets the value; "" for a default.
    """

    kernel: str
    name: str
    declared: Tunable
    value: int
    source: Literal["default", "shipped", "user"] = "default"
    record: str = ""

    def to_dict(self) -> dict[str, object]:
        """Returns all fields, and the fields of the declaration, as JSON values by name."""
        return {
            "kernel": self.kernel,
            "name": self.name,
            "value": self.value,
            "default": self.declared.default,
            "unit": self.declared.unit,
            "source": self.source,
            "record": self.record,
            "reason": self.declared.reason,
        }


def declarations() -> dict[str, Mapping[str, Tunable]]:
    """Returns the tunables of all kernels and groups of thresholds in imported modules."""
    groups = {name: group.declared() for name, group in GROUPS.items()}
    return {name: kernel.declared for name, kernel in TUNED.items()} | groups


def list_tunables(caps: DeviceCaps, pattern: str = "") -> Iterator[TunableValue]:
    """Yields the tunables on a device, sorted by kernel.

    Args:
        pattern: Part of "kernel.name", in any case; "" for all.
    """
    for kernel, declared in sorted(declarations().items()):
        record = find_record(kernel, caps)
        for name, each in declared.items():
            if pattern.lower() not in f"{kernel}.{name}".lower():
                continue
            if name not in record.tunables:
                yield TunableValue(kernel, name, each, each.default)
                continue
            source: Literal["shipped", "user"] = "shipped" if record.source == "clrt" else "user"
            yield TunableValue(kernel, name, each, record.tunables[name], source, str(record))

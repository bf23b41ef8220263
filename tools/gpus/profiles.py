"""Published device profiles, to plan models for devices that are not present."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from clrt.device.caps import DeviceCaps
from clrt.device.quirks import quirks_of

_FILE = Path(__file__).with_name("profiles.json")


@dataclass(frozen=True)
class Profile:
    """Profile of a device.

    Attributes:
        caps: Capabilities as its OpenCL runtime reports them, as far as known.
        target: Compiler target: the nearest of `targets.TARGETS`.
        flops: Peak float32 operations per second.
        unit_flops: Peak of its matrix unit for 16-bit operands, float32 sums; 0 without one.
        bytes_per_s: Peak memory bandwidth.
        launch_s: Launch overhead in seconds; an assumption, no vendor publishes it.
        source: Publisher of the figures.
        compared: Other sources they were compared with; "" for none.
    """

    caps: DeviceCaps
    target: str
    flops: float
    unit_flops: float
    bytes_per_s: float
    launch_s: float
    source: str
    compared: str = ""

    @property
    def name(self) -> str:
        """Name of the device."""
        return self.caps.name


@cache
def profiles() -> tuple[Profile, ...]:
    """Returns the profiles of `profiles.json`, in order."""
    return tuple(
        Profile(_caps(record.pop("caps")), **record)
        for record in json.loads(_FILE.read_text("utf-8"))
    )


def _caps(record: dict[str, Any]) -> DeviceCaps:
    caps = DeviceCaps.from_json(json.dumps(record))
    return replace(caps, quirks=quirks_of(caps))

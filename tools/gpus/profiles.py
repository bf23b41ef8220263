"""Devices as their vendors publish them, so that models are planned for them where they are not."""

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
    """A device.

    Attributes:
        caps: As its OpenCL runtime reports it, as far as that is known.
        target: What compilers for it are given: the nearest of `targets.TARGETS`.
        flops: Peak of float32 operations in a second.
        unit_flops: Of its matrix unit, for 16 bits with sums in float32; 0 where it has none.
        bytes_per_s: Peak to and from memory.
        launch_s: Seconds that a launch takes by itself; an assumption, no vendor publishes it.
        source: Who publishes the figures.
        compared: What else they were compared with; "" for nothing.
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
        """The name of the device."""
        return self.caps.name


@cache
def profiles() -> tuple[Profile, ...]:
    """Those of `profiles.json`, in its order."""
    return tuple(
        Profile(_caps(record.pop("caps")), **record)
        for record in json.loads(_FILE.read_text("utf-8"))
    )


def _caps(record: dict[str, Any]) -> DeviceCaps:
    caps = DeviceCaps.from_json(json.dumps(record))
    return replace(caps, quirks=quirks_of(caps))

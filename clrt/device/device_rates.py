"""How fast a device computes, moves bytes and starts kernels: estimates that only rank variants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from clrt.device.caps import DeviceCaps

# Of a unit. A CPU's core adds two vectors of eight products in a cycle at 3.5 GHz, however wide its
# registers are: Zen 4 takes two cycles for sixteen. A GPU's adds 128 products at 1.5 GHz.
_CPU_FLOPS, _GPU_FLOPS = 112e9, 384e9
_CPU_LANES = 8
_CPU_BYTES, _GPU_BYTES = 12e9, 8e9
_LAUNCH_S = 4e-6


@dataclass(frozen=True)
class DeviceRates:
    """Rates of a device.

    Attributes:
        flops: Floating-point operations in a second.
        nbytes: Bytes to or from memory in a second.
        launch_s: Seconds that a launch takes by itself.
    """

    flops: float
    nbytes: float
    launch_s: float


@lru_cache(maxsize=64)
def rates_of(caps: DeviceCaps) -> DeviceRates:
    """What a device of these capabilities reaches, about."""
    units = caps.cores
    if not caps.is_cpu:
        return DeviceRates(units * _GPU_FLOPS, units * _GPU_BYTES, _LAUNCH_S)
    lanes = min(caps.float_lanes, _CPU_LANES) / _CPU_LANES
    return DeviceRates(units * _CPU_FLOPS * lanes, units * _CPU_BYTES, _LAUNCH_S)

"""Estimated compute rate, memory bandwidth and launch overhead of devices, to rank variants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from clrt.device.caps import DeviceCaps

# FLOP/s per core. A CPU core: two FMAs of 8 lanes per cycle at 3.5 GHz, even with wider registers,
# since Zen 4 needs two cycles for 16 lanes. A GPU core: 128 FMAs per cycle at 1.5 GHz.
_CPU_FLOPS, _GPU_FLOPS = 112e9, 384e9
# float32 lanes to which _CPU_FLOPS refers.
_CPU_LANES = 8
# Memory bandwidth per core, in bytes per second.
_CPU_BYTES, _GPU_BYTES = 12e9, 8e9
# Fixed overhead per launch, in seconds.
_LAUNCH_S = 4e-6


@dataclass(frozen=True)
class DeviceRates:
    """Estimated rates of a device.

    Attributes:
        flops: Floating-point operations per second.
        nbytes: Memory bandwidth in bytes per second.
        launch_s: Fixed overhead per launch, in seconds.
    """

    flops: float
    nbytes: float
    launch_s: float


@lru_cache(maxsize=64)
def rates_of(caps: DeviceCaps) -> DeviceRates:
    """Returns the estimated rates of a device."""
    units = caps.cores
    if not caps.is_cpu:
        return DeviceRates(units * _GPU_FLOPS, units * _GPU_BYTES, _LAUNCH_S)
    lanes = min(caps.float_lanes, _CPU_LANES) / _CPU_LANES
    return DeviceRates(units * _CPU_FLOPS * lanes, units * _CPU_BYTES, _LAUNCH_S)

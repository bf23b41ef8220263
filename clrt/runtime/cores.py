"""CPU devices that use some of their cores: sub-devices of OpenCL 1.2."""

from __future__ import annotations

import dataclasses
from functools import cache

from clrt.errors import DeviceError
from clrt.runtime.devices import DeviceInfo
from clrt.runtime.driver import Guard, cl


def with_cores(device: DeviceInfo, cores: int) -> DeviceInfo:
    """A CPU device that computes on so many of its cores; one that has no more is itself.

    Raises:
        DeviceError: It is no CPU, or its driver cannot divide it.
    """
    if not device.caps.is_cpu:
        raise DeviceError(f"{device} is no CPU, whose cores could be counted.")
    if cores >= device.caps.compute_units:
        return device
    caps = dataclasses.replace(device.caps, compute_units=cores)
    with Guard(str(device)):
        return dataclasses.replace(device, caps=caps, handle=_part(device.handle, cores))


@cache
def _part(device: cl.Device, cores: int) -> cl.Device:
    by_counts = cl.device_partition_property.BY_COUNTS
    return device.create_sub_devices([by_counts, cores, 0])[0]

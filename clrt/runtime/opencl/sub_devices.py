"""CPU devices that use some of their cores: sub-devices of OpenCL 1.2."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np

from clrt.errors import DeviceError, InputError
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.driver import cl, status_name


def with_cores(device: DeviceInfo, cores: int) -> DeviceInfo:
    """A CPU device that computes on some of its cores; as it is where these are all.

    Args:
        cores: How many; below 0, how many it leaves free.

    Raises:
        InputError: The number is none.
        DeviceError: It is no CPU, or its driver cannot divide it.
    """
    if isinstance(cores, bool) or not isinstance(cores, int | np.integer) or cores == 0:
        raise InputError(f"cores is {cores!r}; it is a number, or below 0 how many to leave free.")
    units = device.caps.compute_units
    if not device.caps.is_cpu:
        raise DeviceError(f"{device} is no CPU, whose cores could be counted; leave `cores` out.")
    wanted = int(cores) if cores > 0 else max(1, units + int(cores))
    if wanted >= units:
        return device
    try:
        part = _part(device.handle, wanted)
    except cl.Error as error:
        raise DeviceError(
            f"{device} cannot be divided ({status_name(error.code)}), so that it takes no number "
            "of cores; leave `cores` out."
        ) from error
    caps = dataclasses.replace(device.caps, compute_units=wanted)
    return dataclasses.replace(device, caps=caps, handle=part, cores=wanted)


@cache
def _part(device: cl.Device, cores: int) -> cl.Device:
    by_counts = cl.device_partition_property.BY_COUNTS
    return device.create_sub_devices([by_counts, cores, 0])[0]

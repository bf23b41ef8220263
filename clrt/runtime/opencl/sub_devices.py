"""OpenCL sub-devices: a CPU device restricted to some of its cores."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np

from clrt.errors import DeviceError, InputError
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.driver import cl, status_name


def with_cores(device: DeviceInfo, cores: int) -> DeviceInfo:
    """Returns a sub-device with some of the cores of a CPU device.

    Returns the device itself if these are all of its cores.

    Args:
        device: The CPU device.
        cores: Number of cores; if negative, the number of cores to leave free.

    Raises:
        InputError: `cores` is 0 or not an integer.
        DeviceError: The device is not a CPU, or its driver cannot partition it.
    """
    if isinstance(cores, bool) or not isinstance(cores, int | np.integer) or cores == 0:
        raise InputError(
            f"cores is {cores!r}; pass a number of cores, or a negative number to leave cores free."
        )
    units = device.caps.compute_units
    if not device.caps.is_cpu:
        raise DeviceError(f"{device} is not a CPU, so `cores` does not apply; leave it out.")
    wanted = int(cores) if cores > 0 else max(1, units + int(cores))
    if wanted >= units:
        return device
    try:
        sub_device = _create_sub_device(device.handle, wanted)
    except cl.Error as error:
        raise DeviceError(
            f"{device} cannot be partitioned into sub-devices ({status_name(error.code)}); leave "
            "`cores` out."
        ) from error
    caps = dataclasses.replace(device.caps, compute_units=wanted, has_twin=False)
    return dataclasses.replace(device, caps=caps, handle=sub_device, cores=wanted, twin=None)


@cache
def _create_sub_device(device: cl.Device, cores: int) -> cl.Device:
    by_counts = cl.device_partition_property.BY_COUNTS
    return device.create_sub_devices([by_counts, cores, 0])[0]

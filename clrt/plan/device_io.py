"""Inputs and outputs that a plan binds to device memory of the caller."""

from __future__ import annotations

from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class DeviceIo:
    """Names of the inputs and outputs that a plan binds in device memory, without a copy.

    Attributes:
        device_inputs: Names of the inputs that are tensors on the device.
        donated: Names of the device inputs whose memory the run may overwrite; an output computed
            in place owns that memory afterwards.
        device_outputs: Names of the outputs that stay on the device.
    """

    device_inputs: frozenset[str] = frozenset()
    donated: frozenset[str] = frozenset()
    device_outputs: frozenset[str] = frozenset()


HOST_ONLY = DeviceIo()

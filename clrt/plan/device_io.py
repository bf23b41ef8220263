"""What of a run lies in the caller's memory on the device, as far as its plan goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceIo:
    """Inputs and outputs that a plan binds where they lie, without a copy.

    Attributes:
        device_inputs: Names of the inputs that are tensors on the device.
        donated: Those of them whose memory the run may write to; an output that is made in place
            of one takes its memory over.
        device_outputs: Names of the outputs that stay on the device.
    """

    device_inputs: frozenset[str] = frozenset()
    donated: frozenset[str] = frozenset()
    device_outputs: frozenset[str] = frozenset()


HOST_ONLY = DeviceIo()

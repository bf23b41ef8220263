"""Chooses an actor's OpenCL device by the resources that Ray assigned to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from clrt.errors import DeviceError
from clrt.runtime.opencl.devices import DeviceInfo, choose_device, devices
from clrt.util import env_vars
from clrt.util.env_vars import whole_number


def device_for_actor(device: str | int | None = None) -> str | int | None:
    """Returns the `device` argument of `clrt.load` that suits the process, such as a Ray worker.

    An explicit device takes precedence. Otherwise a Ray worker uses the GPU that Ray assigned to
    it, or the CPU if Ray assigned none. Outside of Ray workers, or if CLRT_DEVICE is set, the
    result is None, so that `clrt.load` chooses.

    Args:
        device: Explicit device, as in `clrt.load`; None for none.

    Raises:
        DeviceError: The assigned GPU is not an OpenCL device, or cannot be identified.
    """
    if device is not None or env_vars.DEVICE.get() != env_vars.DEVICE.default:
        return device
    granted = _granted_gpus()
    if granted is None:
        return None
    return choose_gpu(granted).index if granted else "cpu"


def choose_gpu(granted: Sequence[str]) -> DeviceInfo:
    """Returns the OpenCL device of the first GPU that Ray assigned.

    Ray hides other GPUs by CUDA_VISIBLE_DEVICES and similar variables. Drivers that honour these
    (NVIDIA, AMD) list only the assigned GPUs, so the first listed GPU is used. Other drivers list
    all GPUs, and Ray's number is an index into the list.

    Args:
        granted: Ray's ids of the assigned GPUs: numbers, or names of GPUs or of their slices.

    Raises:
        DeviceError: OpenCL has no GPU, or Ray's id identifies none of its GPUs.
    """
    first = choose_device("gpu")
    there = [
        d for d in devices() if d.usable and d.platform == first.platform and d.kind == first.kind
    ]
    if len(there) <= len(granted):
        return there[0]
    if (index := whole_number(granted[0], len(there) - 1)) is not None:
        return there[index]
    listing = "; ".join(map(str, there))
    raise DeviceError(
        f"Ray gave this actor GPU {granted[0]}, but OpenCL does not report which of its GPUs that "
        f"is ({listing}); name one by device=."
    )


def _granted_gpus() -> list[str] | None:
    """Returns Ray's ids of the GPUs assigned to this worker; None outside of Ray workers."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if context.get_actor_id() is None and context.get_task_id() is None:
        return None
    return [str(x) for x in context.get_accelerator_ids().get("GPU", ())]

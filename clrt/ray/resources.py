"""The device of an actor: the one that Ray's resources give it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from clrt.errors import DeviceError
from clrt.runtime.opencl.devices import DeviceInfo, choose_device, devices
from clrt.util import env_vars
from clrt.util.env_vars import whole_number


def device_for_actor(device: str | int | None = None) -> str | int | None:
    """What `clrt.load` takes for the device that this process shall use.

    A device that is asked for is taken, then CLRT_DEVICE. Otherwise a worker of Ray uses the GPU
    that Ray gave it, or a share of, and the CPU if it gave none. Outside of Ray nothing is chosen.

    Args:
        device: As in `clrt.load`.

    Raises:
        DeviceError: OpenCL has no such GPU.
    """
    if device is not None or env_vars.DEVICE.get() != env_vars.DEVICE.default:
        return device
    granted = _granted_gpus()
    if granted is None:
        return None
    return choose_gpu(granted).index if granted else "cpu"


def choose_gpu(granted: Sequence[str]) -> DeviceInfo:
    """The OpenCL device of the first GPU of some that Ray numbers.

    Ray hides all others by CUDA_VISIBLE_DEVICES or the like. Where the driver follows, as NVIDIA's
    and AMD's do, OpenCL shows as many as were granted, and the first is the one. Where it does not,
    it shows all in their order, which Ray's number is a place in.

    Args:
        granted: Ray's ids: numbers, or names of GPUs and of their slices.

    Raises:
        DeviceError: OpenCL has no GPU, or the id says none.
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
        f"Ray gave this actor GPU {granted[0]}, and OpenCL does not say which of its GPUs that is "
        f"({listing}); name one by device=."
    )


def _granted_gpus() -> list[str] | None:
    """The ids of the GPUs that Ray gave this worker; None outside of Ray's workers."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if context.get_actor_id() is None and context.get_task_id() is None:
        return None
    return [str(x) for x in context.get_accelerator_ids().get("GPU", ())]

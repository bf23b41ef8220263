"""Maps ONNX Runtime's execution providers to OpenCL devices."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from clrt.errors import DeviceError, warn_user
from clrt.onnxruntime.exceptions import InvalidArgument
from clrt.runtime.opencl.devices import DeviceInfo, choose_device, devices

CPU = "CPUExecutionProvider"
CLRT = "ClrtExecutionProvider"
# Providers that stand for a GPU.
GPUS = (
    "TensorrtExecutionProvider",
    "NvTensorRTRTXExecutionProvider",
    "CUDAExecutionProvider",
    "MIGraphXExecutionProvider",
    "ROCMExecutionProvider",
    "DmlExecutionProvider",
    "WebGpuExecutionProvider",
)
# Providers of ONNX Runtime that correspond to no OpenCL device.
OTHERS = (
    "OpenVINOExecutionProvider",
    "DnnlExecutionProvider",
    "VitisAIExecutionProvider",
    "QNNExecutionProvider",
    "NnapiExecutionProvider",
    "VSINPUExecutionProvider",
    "JsExecutionProvider",
    "CoreMLExecutionProvider",
    "RknpuExecutionProvider",
    "WebNNExecutionProvider",
    "XnnpackExecutionProvider",
    "CANNExecutionProvider",
    "AzureExecutionProvider",
)
# Device types by which OrtValues and bindings name a GPU.
GPU_TYPES = frozenset(("cuda", "dml", "webgpu", "gpu"))

Providers: TypeAlias = "Sequence[str | tuple[str, Mapping[Any, Any]]] | None"


@dataclass(frozen=True)
class ProviderChoice:
    """Device and execution providers of a session.

    Attributes:
        device: Device that the session runs on.
        options: Options of each requested provider that is available, by name, preferred first.
            The provider of CPUs is always included.
    """

    device: DeviceInfo
    options: dict[str, dict[str, str]]


def get_available_providers() -> list[str]:
    """Returns the names of the execution providers that a session can use.

    Providers that stand for a GPU are listed only if there is a usable GPU.
    """
    return [CLRT, *(GPUS if _gpus() else ()), CPU]


def get_all_providers() -> list[str]:
    """Returns the names of all known execution providers, available or not."""
    return [CLRT, *GPUS, *OTHERS, CPU]


def get_device() -> str:
    """Returns "GPU" if this machine has a usable GPU, else "CPU"."""
    return "GPU" if _gpus() else "CPU"


def choose(
    providers: Providers, options: Sequence[Mapping[Any, Any]] | None = None
) -> ProviderChoice:
    """Chooses the device and providers of a session: the device of the first available provider.

    Unavailable providers are skipped with a warning. If no provider is available, the CPU is used;
    also, with a warning, if `providers` and `options` are invalid.

    Args:
        providers: Names of execution providers, or (name, options), preferred first; None for the
            device that `clrt.load` chooses.
        options: Options of each provider, if `providers` are names alone; None for none.

    Raises:
        DeviceError: There is no device, or no device that matches an option.
    """
    try:
        requested = _by_name(providers, options)
    except InvalidArgument as error:
        warn_user(f"{error} {CPU} is taken.")
        requested = {}
    else:
        if not requested and providers is None:
            requested = {CLRT: {}}
    available = get_available_providers()
    usable: dict[str, dict[str, str]] = {}
    for name, texts in requested.items():
        if name in available:
            usable[name] = texts
        else:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{', '.join(available)}'",
                stacklevel=4,
            )
    usable.setdefault(CPU, {})
    name, texts = next(iter(usable.items()))
    return ProviderChoice(_device(name, texts), usable)


def device_of_type(name: str, number: int) -> DeviceInfo:
    """Returns the device for a device type and number, as OrtValues and bindings specify it.

    Args:
        name: Device type: "clrt" for the device that `clrt.load` chooses by default; any other
            type, such as "cuda", for a GPU.
        number: Index among the usable GPUs; ignored for "clrt".

    Raises:
        DeviceError: There is no such device.
    """
    if name == "clrt":
        return choose_device()
    gpus = _gpus()
    if number >= len(gpus):
        raise DeviceError(f"There is no GPU {number}; this machine has {len(gpus)}.")
    return gpus[number]


def _by_name(
    providers: Providers, options: Sequence[Mapping[Any, Any]] | None
) -> dict[str, dict[str, str]]:
    """Returns the options of each requested execution provider by name, as strings.

    Args:
        providers: Names of providers, or (name, options); None for none.
        options: Options of each provider, if `providers` are names alone; None for none.

    Raises:
        InvalidArgument: `providers` is not a list of names or pairs, or the lengths differ.
    """
    if providers is None:
        return {}
    if not isinstance(providers, Sequence) or isinstance(providers, str):
        raise InvalidArgument(f"'providers' should be a sequence of names; it is {providers!r}.")
    if options is not None and len(options) != len(providers):
        raise InvalidArgument(
            "'providers' and 'provider_options' should be the same length if both are given."
        )
    pairs: list[tuple[Any, Any]] = []
    for index, item in enumerate(providers):
        pair = (
            item if isinstance(item, tuple) else (item, {} if options is None else options[index])
        )
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], Mapping):
            raise InvalidArgument(
                "'providers' values must be either strings or (string, dict) tuples; "
                f"{item!r} is neither."
            )
        pairs.append(pair)
    by_name: dict[str, dict[str, str]] = {}
    for name, values in pairs:
        by_name.setdefault(name, {str(k): str(v) for k, v in values.items()})
    return by_name


def _device(name: str, options: Mapping[str, str]) -> DeviceInfo:
    """Returns the device that an execution provider stands for.

    Args:
        name: Name of the provider.
        options: Options of the provider, such as "device" or "device_id".
    """
    if name == CLRT:
        return choose_device(options.get("device"))
    if name in GPUS:
        return device_of_type("gpu", _number(options.get("device_id", "0")))
    # CLRT_DEVICE may name one of several CPU implementations.
    preferred = choose_device()
    if preferred.caps.is_cpu:
        return preferred
    try:
        return choose_device("cpu")
    except DeviceError:
        warn_user(f"There is no OpenCL implementation for the CPU; {preferred} is taken.")
        return preferred


def _number(text: str) -> int:
    try:
        return operator.index(int(text))
    except ValueError as error:
        raise InvalidArgument(f"device_id is {text!r}; expected a number.") from error


def _gpus() -> list[DeviceInfo]:
    return [d for d in devices() if d.usable and d.kind in ("gpu", "igpu") and not d.caps.simulator]

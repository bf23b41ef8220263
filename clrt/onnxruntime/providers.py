"""Execution providers by ONNX Runtime's names, and the devices that clrt runs in their place."""

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
# Whoever asks for one of these wants a GPU.
GPUS = (
    "TensorrtExecutionProvider",
    "NvTensorRTRTXExecutionProvider",
    "CUDAExecutionProvider",
    "MIGraphXExecutionProvider",
    "ROCMExecutionProvider",
    "DmlExecutionProvider",
    "WebGpuExecutionProvider",
)
# Those of ONNX Runtime's that stand for no device of OpenCL.
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
# How OrtValues and bindings name a GPU.
GPU_TYPES = frozenset(("cuda", "dml", "webgpu", "gpu"))

Providers: TypeAlias = "Sequence[str | tuple[str, Mapping[Any, Any]]] | None"


@dataclass(frozen=True)
class ProviderChoice:
    """What a session runs on.

    Attributes:
        options: By the name of each provider that was asked for and is there, best first.
    """

    device: DeviceInfo
    options: dict[str, dict[str, str]]


def get_available_providers() -> list[str]:
    """The providers that a session can be given: those of GPUs only where there is one."""
    return [CLRT, *(GPUS if _gpus() else ()), CPU]


def get_all_providers() -> list[str]:
    """Every provider that is known by name."""
    return [CLRT, *GPUS, *OTHERS, CPU]


def get_device() -> str:
    """ "GPU" where there is one, else "CPU"."""
    return "GPU" if _gpus() else "CPU"


def choose(
    providers: Providers, options: Sequence[Mapping[Any, Any]] | None = None
) -> ProviderChoice:
    """The device for providers in order of preference.

    Without any it is the device that `clrt.load` takes. One that is not there is passed over with
    a warning, and behind all of them is the CPU.

    Raises:
        DeviceError: There is no device, or not the one that an option names.
    """
    try:
        asked = _by_name(providers, options)
    except InvalidArgument as error:
        warn_user(f"{error} {CPU} is taken.")
        asked = {}
    else:
        if not asked and providers is None:
            asked = {CLRT: {}}
    available = get_available_providers()
    there: dict[str, dict[str, str]] = {}
    for name, given in asked.items():
        if name in available:
            there[name] = given
        else:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{', '.join(available)}'",
                stacklevel=4,
            )
    there.setdefault(CPU, {})
    name, given = next(iter(there.items()))
    return ProviderChoice(_device(name, given), there)


def device_of_type(name: str, number: int) -> DeviceInfo:
    """The device that OrtValues name: "cuda", 0 is the first GPU; "clrt" what `clrt.load` takes.

    Raises:
        DeviceError: There is none.
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
    """The options of each provider, as text.

    Raises:
        InvalidArgument: It is no such list.
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
    for place, item in enumerate(providers):
        pair = (
            item if isinstance(item, tuple) else (item, {} if options is None else options[place])
        )
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], Mapping):
            raise InvalidArgument(
                "'providers' values must be either strings or (string, dict) tuples; "
                f"{item!r} is neither."
            )
        pairs.append(pair)
    named: dict[str, dict[str, str]] = {}
    for name, given in pairs:
        named.setdefault(name, {str(k): str(v) for k, v in given.items()})
    return named


def _device(name: str, options: Mapping[str, str]) -> DeviceInfo:
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
        raise InvalidArgument(f"device_id is {text!r}; it is a number.") from error


def _gpus() -> list[DeviceInfo]:
    return [d for d in devices() if d.usable and d.kind in ("gpu", "igpu") and not d.caps.simulator]

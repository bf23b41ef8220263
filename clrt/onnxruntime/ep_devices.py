"""OpenCL devices as ONNX Runtime's `OrtEpDevice` interface lists and selects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from clrt.errors import warn_user
from clrt.onnxruntime import exceptions
from clrt.onnxruntime.exceptions import Fail, InvalidArgument
from clrt.onnxruntime.providers import CLRT, CPU, GPUS, ProviderChoice
from clrt.runtime.opencl.devices import DeviceInfo, choose_device, devices

_CPU: dict[str, dict[str, str]] = {CPU: {}}
# Maximum number of devices that a delegate may select, passed to it as by ONNX Runtime.
_MAX_SELECTIONS = 8
_VENDOR_IDS = {"amd": 0x1002, "advanced micro devices": 0x1002, "nvidia": 0x10DE, "intel": 0x8086}
_VENDOR_IDS |= {"apple": 0x106B, "qualcomm": 0x5143, "arm": 0x13B5}


class OrtHardwareDeviceType(IntEnum):
    """Type of a hardware device in ONNX Runtime's API."""

    CPU = 0
    GPU = 1
    NPU = 2


class OrtExecutionProviderDevicePolicy(IntEnum):
    """Policy by which a session selects its device.

    clrt does not support MAX_EFFICIENCY and MIN_OVERALL_POWER, which depend on power.
    """

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


@dataclass(frozen=True)
class OrtHardwareDevice:
    """An OpenCL device of this machine, as ONNX Runtime describes hardware.

    Attributes:
        type: CPU, GPU or NPU (any other accelerator).
        vendor_id: PCI vendor ID; 0 if unknown.
        vendor: Vendor's name, as the driver reports it.
        device_id: Index of the device in `clrt.devices()`.
        metadata: For a GPU, {"Discrete": "1"} or, if it is integrated, {"Discrete": "0"}; else {}.
    """

    type: OrtHardwareDeviceType
    vendor_id: int
    vendor: str
    device_id: int
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OrtEpDevice:
    """An OpenCL device paired with an execution provider that runs on it.

    Attributes:
        ep_name: Name of the execution provider.
        ep_vendor: "clrt".
        device: Description of the device's hardware.
        ep_metadata: Name and OpenCL platform of the device, under "name" and "platform".
        ep_options: Empty; present for compatibility.
        info: The device as clrt describes it.
    """

    ep_name: str
    ep_vendor: str
    device: OrtHardwareDevice
    ep_metadata: dict[str, str] = field(default_factory=dict)
    ep_options: dict[str, str] = field(default_factory=dict)
    info: DeviceInfo = field(kw_only=True, repr=False)


def get_ep_devices() -> list[OrtEpDevice]:
    """Returns each usable device, except simulators, once per execution provider that runs on it.

    The devices of one provider are consecutive, the default device first.
    """
    usable = [d for d in devices() if d.usable and not d.caps.simulator]
    usable.sort(key=lambda d: (not d.is_default, d.index))
    pairs = [(CLRT, d) for d in usable]
    pairs += [(name, d) for name in GPUS for d in usable if d.kind in ("gpu", "igpu")]
    pairs += [(CPU, d) for d in usable if d.kind == "cpu"]
    return [
        OrtEpDevice(name, "clrt", _hardware(d), {"name": d.name, "platform": d.platform}, info=d)
        for name, d in pairs
    ]


def _hardware(device: DeviceInfo) -> OrtHardwareDevice:
    """Describes a device as ONNX Runtime describes hardware."""
    kinds = {"gpu": OrtHardwareDeviceType.GPU, "igpu": OrtHardwareDeviceType.GPU}
    kinds["accelerator"] = OrtHardwareDeviceType.NPU
    vendor = device.caps.vendor
    known = (number for name, number in _VENDOR_IDS.items() if name in vendor.lower())
    discrete = {"Discrete": str(int(device.kind == "gpu"))} if "gpu" in device.kind else {}
    kind = kinds.get(device.kind, OrtHardwareDeviceType.CPU)
    return OrtHardwareDevice(kind, next(known, 0), vendor, device.index, discrete)


def choice_of(selected: Sequence[OrtEpDevice], options: Mapping[str, str]) -> ProviderChoice:
    """Returns the device and provider options of a session whose device a program has selected.

    Args:
        selected: Entries of `get_ep_devices()`, all for the same device and provider.
        options: Options of the provider.

    Raises:
        InvalidArgument: The selection is empty, has other objects, or several providers.
        Fail: Several devices are selected: clrt runs a model on one device.
    """
    if not selected:
        raise InvalidArgument("Must provide one or more OrtEpDevice instances.")
    for device in selected:
        if not isinstance(device, OrtEpDevice):
            raise InvalidArgument(f"{device!r} is not one of get_ep_devices().")
    if len({device.ep_name for device in selected}) > 1:
        raise InvalidArgument("All OrtEpDevice instances must refer to one execution provider.")
    first = selected[0]
    if any(device.info.key != first.info.key for device in selected):
        raise Fail("A model runs on one device; give one OrtEpDevice.")
    texts = {str(key): str(value) for key, value in options.items()}
    by_provider = {first.ep_name: texts}
    by_provider.setdefault(CPU, {})
    return ProviderChoice(first.info, by_provider)


def choice_by_policy(policy: Any) -> ProviderChoice:
    """Returns the device and providers of a session for a device selection policy.

    Warns, and selects the default device, if there is no GPU or NPU for a policy that prefers one.

    Args:
        policy: An `OrtExecutionProviderDevicePolicy`, or its number.

    Raises:
        InvalidArgument: `policy` is not a policy.
        NotImplemented: The policy depends on power, which OpenCL does not report.
        DeviceError: There is no device; for PREFER_CPU, no CPU device.
    """
    policies = OrtExecutionProviderDevicePolicy
    try:
        wanted = policies(policy)
    except ValueError as error:
        raise InvalidArgument(
            f"{policy!r} is not an OrtExecutionProviderDevicePolicy; use one of its members."
        ) from error
    if wanted in (policies.MAX_EFFICIENCY, policies.MIN_OVERALL_POWER):
        raise exceptions.NotImplemented(
            f"Policy {wanted.name} depends on power, which OpenCL does not report; select a device "
            "of get_ep_devices() by add_provider_for_devices."
        )
    if wanted in (policies.DEFAULT, policies.MAX_PERFORMANCE):
        return ProviderChoice(choose_device("auto"), {CLRT: {}, **_CPU})
    if wanted is policies.PREFER_CPU:
        return ProviderChoice(choose_device("cpu"), dict(_CPU))
    kinds = ("gpu", "igpu") if wanted is policies.PREFER_GPU else ("accelerator",)
    preferred = [d for d in get_ep_devices() if d.ep_name == CLRT and d.info.kind in kinds]
    if preferred:
        return choice_of(preferred[:1], {})
    device = choose_device("auto")
    warn_user(f"Policy {wanted.name}: there is no such device; {device} is taken.")
    return ProviderChoice(device, {CLRT: {}, **_CPU})


def choice_by_delegate(delegate: Callable[..., Any]) -> ProviderChoice:
    """Returns the device and providers of a session that a program's function selects.

    Args:
        delegate: Called with the entries of `get_ep_devices()`, two empty dicts in place of
            metadata, and the maximum number of entries; returns the selected entries.

    Raises:
        Fail: The delegate returns nothing, or several devices.
        InvalidArgument: The delegate returns objects that are not `OrtEpDevice`, or entries of
            several providers.
    """
    selected = delegate(get_ep_devices(), {}, {}, _MAX_SELECTIONS)
    if not selected:
        raise Fail("The device selection delegate returned no device.")
    return choice_of(list(selected), {})


def register_execution_provider_library(name: str, path: str) -> None:
    """Raises an error: libraries of execution providers work with ONNX Runtime only.

    Raises:
        NotImplemented: Always.
    """
    raise exceptions.NotImplemented(
        f"The library of provider '{name}' works only with ONNX Runtime; get_ep_devices() lists "
        "clrt's devices."
    )


def unregister_execution_provider_library(name: str) -> None:
    """Raises an error: libraries of execution providers cannot be registered.

    Raises:
        InvalidArgument: Always, since no library is registered.
    """
    raise InvalidArgument(f"No provider library is registered as '{name}'.")


__all__ = [
    "OrtEpDevice",
    "OrtExecutionProviderDevicePolicy",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "get_ep_devices",
    "register_execution_provider_library",
    "unregister_execution_provider_library",
]

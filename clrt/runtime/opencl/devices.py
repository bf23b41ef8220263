"""Lists the OpenCL devices of this machine, and chooses one by name, kind, index or identifier."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import re
import sys
from collections.abc import Sequence
from functools import cache
from threading import Thread
from typing import Any

from clrt.device.caps import DeviceCaps, MatrixShape
from clrt.device.quirks import quirks_of
from clrt.errors import DeviceError, warn_user
from clrt.runtime.opencl.cpu_matrix_units import matrix_shapes
from clrt.runtime.opencl.device_ids import DeviceIds, read_ids
from clrt.runtime.opencl.driver import (
    Guard,
    cl,
    find_platforms,
    load_drivers,
    note_use,
    sub_group_sizes,
)
from clrt.runtime.opencl.icd_loader import install_hint, load_failure
from clrt.runtime.opencl.linker import has_linker
from clrt.runtime.opencl.pocl import float_lanes, lacks_builtins, repair_target_cpu, target_of
from clrt.runtime.opencl.pocl_settings import pocl_configured
from clrt.runtime.opencl.twins import split_twins
from clrt.util import env_vars
from clrt.util.env_vars import whole_number
from clrt.util.fast_dataclass import dataclass

# Short names of platforms that users may ask for, and the names that drivers report.
_PLATFORM_ALIASES = {"pocl": "portable computing language"}
_LINKER_NOTE = (
    "PoCL needs the linker `ld`: apt-get install binutils (or your system's package); an "
    "application that is frozen can bring one along"
)

_BUILTINS_NOTE = (
    "this PoCL is a small one, without functions for CPUs as old as this one: take PyPI's "
    "pocl-binary-distribution, or leave `cpus` out where the application is frozen"
)


@dataclass(frozen=True)
class DeviceInfo:
    """An OpenCL device of this machine.

    Attributes:
        index: Number by which `device=` of `clrt.load` selects the device.
        caps: What planning may know of the device.
        usable: Whether clrt can run on the device.
        note: Why the device is not usable, or a remark for users; "" if there is none.
        is_default: Whether `device="auto"` selects the device.
        handle: The driver's device object; None for a device that is known by `caps` only.
        cores: Number of CPU cores that the device computes on, if restricted; None for all.
        twin: Second device of the same implementation that runs kernels on the calling thread, on
            one core, and shares buffers with this one (`clrt/runtime/opencl/twins.py`); or None.
    """

    index: int
    caps: DeviceCaps
    usable: bool
    note: str
    is_default: bool
    handle: Any = dataclasses.field(repr=False, compare=False)
    cores: int | None = None
    twin: DeviceInfo | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def key(self) -> tuple[int, int]:
        """(index, number of compute units), which identifies a device or a sub-device."""
        return self.index, self.caps.compute_units

    @property
    def name(self) -> str:
        """Device name that the driver reports."""
        return self.caps.name

    @property
    def ids(self) -> DeviceIds:
        """PCI address, UUID and LUID of the device, as far as its driver reports them."""
        return DeviceIds() if self.handle is None else _ids(self.handle)

    @property
    def platform(self) -> str:
        """Name of the OpenCL platform that the device belongs to."""
        return self.caps.platform

    @property
    def kind(self) -> str:
        """Kind of the device: "cpu", "gpu" (discrete), "igpu" (integrated) or "accelerator"."""
        return self.caps.kind

    def __str__(self) -> str:
        part = "" if self.cores is None else f", cores={self.cores}"
        return f"[{self.index}] {self.caps.platform}: {self.caps.name} ({self.caps.kind}{part})"


@cache
def _ids(handle: cl.Device) -> DeviceIds:
    with Guard("An OpenCL device"):
        return read_ids(handle)


def read_caps(device: cl.Device) -> DeviceCaps:
    """Queries a device for the capabilities that planning needs.

    Raises:
        DeviceError: The query fails.
    """
    with Guard("An OpenCL device"):
        return _read_caps(device)


def _read_caps(device: cl.Device) -> DeviceCaps:
    kind = "accelerator"
    if device.type & cl.device_type.CPU:
        kind = "cpu"
    elif device.type & cl.device_type.GPU:
        kind = "igpu" if device.host_unified_memory else "gpu"
    version = re.match(r"OpenCL (\d+)\.(\d+)", device.version)
    caps = DeviceCaps(
        platform=device.platform.name.strip(),
        name=device.name.strip(),
        vendor=device.vendor.strip(),
        driver=device.driver_version.strip(),
        kind=kind,
        cl_version=(int(version[1]), int(version[2])) if version else (1, 2),
        compute_units=device.max_compute_units,
        max_work_group_size=device.max_work_group_size,
        local_mem_bytes=device.local_mem_size,
        global_mem_bytes=device.global_mem_size,
        max_alloc_bytes=device.max_mem_alloc_size,
        float_lanes=_float_lanes(device),
        opencl_c=_opencl_c(device),
        # Kernels for CPUs do not use sub-groups.
        sub_group_sizes=frozenset() if kind == "cpu" else sub_group_sizes(device),
        extensions=frozenset(device.extensions.split()),
    )
    quirks = quirks_of(caps)
    return dataclasses.replace(
        caps,
        quirks=quirks,
        simulator="simulator" in quirks,
        matrix_shapes=_matrix_shapes(device, caps, quirks),
    )


def _matrix_shapes(
    device: cl.Device, caps: DeviceCaps, quirks: frozenset[str]
) -> frozenset[MatrixShape]:
    if not caps.is_cpu:
        from clrt.runtime.opencl.gpu_matrix_units import gpu_units  # imports kernels for GPUs

        return gpu_units(device, "no-assembler-beside-barriers" not in quirks)
    return matrix_shapes() if "takes-assembler" in quirks else frozenset()


def _opencl_c(device: cl.Device) -> tuple[int, int]:
    """Returns the newest OpenCL C version, as (major, minor), that a device's compiler accepts.

    Devices before OpenCL 3.0 report one version. Later devices also report a list, which may have
    newer versions than the first report.
    """
    named = re.match(r"OpenCL C (\d+)\.(\d+)", device.opencl_c_version)
    versions = [(int(named[1]), int(named[2]))] if named else [(1, 2)]
    with contextlib.suppress(cl.Error, AttributeError):
        packed = (v.version for v in device.opencl_c_all_versions)
        versions += [(v >> 22, v >> 12 & 0x3FF) for v in packed]
    return max(versions)


# Each device with its twin.
_device_handles: list[tuple[cl.Device, cl.Device | None]] = []
_starting: Thread | None = None


def start_drivers() -> None:
    """Starts a thread that loads the OpenCL drivers, which takes about 50 ms.

    Callers can read a model meanwhile; `devices` waits for the thread to end. Does nothing if the
    drivers are loaded or loading.
    """
    global _starting
    if _starting is None and not _device_handles:
        note_use()
        thread = Thread(target=load_drivers, name="clrt-drivers", daemon=True)
        thread.start()
        _starting = thread  # set after `start`: a thread that did not start cannot be joined


def _handles() -> Sequence[tuple[cl.Device, cl.Device | None]]:
    """Returns the handles of all devices that the ICD loader lists, each with that of its twin.

    An OpenCL implementation that fails is left out, with a warning. The list is cached for the
    process if no implementation failed.

    Raises:
        DeviceError: The loader fails.
    """
    if _device_handles:
        return _device_handles
    note_use()
    if _starting is not None:
        _starting.join()
    handles: list[tuple[cl.Device, cl.Device | None]] = []
    is_complete = True
    with Guard("The OpenCL loader"):
        platforms = find_platforms()
    for platform in platforms:
        try:
            with pocl_configured():  # the loader lists devices itself only of several platforms
                found = platform.get_devices()
            handles += split_twins(found)
        except cl.Error as error:
            if error.code != cl.status_code.DEVICE_NOT_FOUND:
                is_complete = False
                warn_user(f"An OpenCL implementation is left out, since it fails: {error}.")
    if is_complete:
        _device_handles[:] = handles
    return handles


@cache
def _float_lanes(device: cl.Device) -> int:
    """Returns how many float32 elements a vector register holds in code compiled for a device."""
    if "pocl" not in device.version.lower():
        return int(device.native_vector_width_float)
    architecture, cpu = target_of(device.version)
    if cpu == "generic":
        cpu = repair_target_cpu(device.int_ptr) or cpu
    return float_lanes(architecture, cpu)


def _rank(caps: DeviceCaps) -> tuple[bool, int, bool]:
    """Returns the sort key of a device for `device="auto"`; the least one is preferred.

    Sorts by three criteria: native drivers before translation layers; discrete GPU, integrated GPU,
    CPU, other kinds; devices without slow launches before devices with slow launches.
    """
    order = {"gpu": 0, "igpu": 1, "cpu": 2}
    translated, slow = (q in caps.quirks for q in ("translation-layer", "slow-launches"))
    return translated, order.get(caps.kind, 3), slow


def _note(caps: DeviceCaps) -> str:
    return _unusable(caps) or ("taken only when asked for by name" if caps.simulator else "")


def _unusable(caps: DeviceCaps) -> str:
    """Returns the reason why a device cannot be used; "" if it can."""
    if sys.platform == "linux" and "needs-linker" in caps.quirks and not has_linker():
        return _LINKER_NOTE
    if "needs-linker" in caps.quirks and lacks_builtins():
        return _BUILTINS_NOTE
    return ""


def devices() -> list[DeviceInfo]:
    """Returns every OpenCL device of this machine, usable or not.

    The order is the ICD loader's. Devices of an Intel runtime that the loader misses come last.

    Raises:
        DeviceError: The ICD loader or the query of a device fails.
    """
    handles = _handles()
    caps = [
        dataclasses.replace(read_caps(handle), has_twin=twin is not None)
        for handle, twin in handles
    ]
    candidates = [i for i, c in enumerate(caps) if not _unusable(c) and not c.simulator]
    default = min(candidates, key=lambda i: (_rank(caps[i]), i), default=None)
    return [
        DeviceInfo(
            i,
            c,
            not _unusable(c),
            _note(c),
            i == default,
            handles[i][0],
            twin=_twin(i, handles[i][1]),
        )
        for i, c in enumerate(caps)
    ]


def _twin(index: int, handle: cl.Device | None) -> DeviceInfo | None:
    """Returns the description of a device's twin; None if it has none.

    Args:
        index: Index of the device.
        handle: Handle of the twin, or None.
    """
    if handle is None:
        return None
    return DeviceInfo(index, read_caps(handle), True, "", False, handle)


def no_device_text(available: Sequence[DeviceInfo]) -> str:
    """Returns the error message for a machine without a usable device.

    Args:
        available: All devices of the machine, each with a note on why it is not usable; may be
            empty.
    """
    listing = "; ".join(f"{d}{f' - {d.note}' if d.note else ''}" for d in available)
    there = f" There is: {listing}." if listing else ""
    return f"No usable OpenCL device was found.{there} {install_hint()}{load_failure()}"


def choose_device(request: str | int | DeviceInfo | None = None) -> DeviceInfo:
    """Returns the preferred usable device that matches a request.

    Args:
        request: "auto", "cpu", "gpu", a substring of a platform or device name in any case, an
            index, or "pci:", "uuid:" or "luid:" followed by an identifier of `DeviceInfo.ids`. A
            `DeviceInfo` is returned as it is. None reads the environment variable CLRT_DEVICE,
            and defaults to "auto".

    Raises:
        DeviceError: No usable device matches. The message lists all devices, or states why the
            matching device is not usable.
    """
    if isinstance(request, DeviceInfo):
        return request
    wanted = env_vars.DEVICE.get() if request is None else request
    available = devices()
    text = str(wanted).strip().lower() or "auto"
    matches = _matching(text, available)
    usable = [d for d in matches if d.usable]
    if not usable:
        if not any(d.usable and not d.caps.simulator for d in available):
            raise DeviceError(no_device_text(available))
        listing = "; ".join(f"{d}{f' - {d.note}' if d.note else ''}" for d in available)
        if matches:
            raise DeviceError(f"{matches[0]} cannot be used: {matches[0].note}.")
        names = [name for d in available for name in (d.name, d.platform)]
        names += [kind for kind in ("auto", "cpu", "gpu") if _matching(kind, available)]
        near = difflib.get_close_matches(str(wanted), names, 1)
        hint = f" Did you mean {near[0]!r}?" if near and near[0] != str(wanted).lower() else ""
        there = f" There is: {listing}.{load_failure()}"
        raise DeviceError(f"No OpenCL device matches {wanted!r}.{hint}{there}")
    chosen = min(usable, key=lambda d: (_rank(d.caps), d.index))
    if text in ("auto", "cpu") and chosen.caps.is_cpu:
        failure = load_failure()
        if failure:
            warn_user(f"{chosen} is used.{failure}")
    return chosen


def _matching(text: str, available: list[DeviceInfo]) -> list[DeviceInfo]:
    """Returns the devices that a request selects; simulators only by index, name or identifier.

    Args:
        text: Lower-case request: an index, "auto", "cpu", "gpu", an identifier such as
            "pci:0000:01:00.0", or part of a platform or device name.
        available: All devices of the machine.
    """
    if text.isdecimal():
        index = whole_number(text)
        return [d for d in available if d.index == index]
    real = [d for d in available if not d.caps.simulator]
    if text == "auto":
        return real
    if text == "cpu":
        return [d for d in real if d.caps.kind == "cpu"]
    if text == "gpu":
        return [d for d in real if d.caps.kind in ("gpu", "igpu")]
    kind, colon, number = text.partition(":")
    if colon and kind in ("pci", "uuid", "luid"):
        return [d for d in available if d.ids.matches(kind, number.strip())]
    text = _PLATFORM_ALIASES.get(text, text)
    return [d for d in available if text in d.name.lower() or text in d.platform.lower()]

"""Tests which OpenCL C features a device compiles, since reports of drivers may be wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from clrt.device.caps import DeviceCaps
from clrt.runtime.opencl.driver import Guard, cl
from clrt.runtime.opencl.session import DeviceSession
from clrt.util.fast_dataclass import dataclass

_KERNEL = "__kernel void probe(__global {type} *x) {{ x[0] = {value}; }}\n"
# Attributes of pyopencl devices that a device report lists besides the capabilities; none of them
# identifies a user or a machine.
_REPORTED_ATTRIBUTES = (
    *("version", "opencl_c_version", "profile", "max_clock_frequency"),
    "preferred_vector_width_float",
    *("native_vector_width_half", "global_mem_cache_size", "global_mem_cacheline_size"),
    *("local_mem_type", "mem_base_addr_align", "max_constant_buffer_size", "max_parameter_size"),
    *("profiling_timer_resolution", "host_unified_memory", "image_support", "single_fp_config"),
    *("half_fp_config", "double_fp_config", "max_num_sub_groups", "warp_size_nv"),
    *("compute_capability_major_nv", "compute_capability_minor_nv", "wavefront_width_amd"),
    *("simd_per_compute_unit_amd", "gfxip_major_amd", "gfxip_minor_amd", "board_name_amd"),
)


@dataclass(frozen=True)
class CompilerProbe:
    """A kernel that compiles only if the device supports some OpenCL C feature.

    Attributes:
        source: OpenCL C of the kernel.
        opencl_c: OpenCL C version to compile it with, such as "2.0".
        reported: Returns whether a device's capabilities claim the feature.
    """

    source: str
    opencl_c: str
    reported: Callable[[DeviceCaps], bool]


def _probe(
    value: str, reported: Callable[[DeviceCaps], bool], type_: str = "int", opencl_c: str = "1.2"
) -> CompilerProbe:
    return CompilerProbe(_KERNEL.format(type=type_, value=value), opencl_c, reported)


def _has(extension: str) -> Callable[[DeviceCaps], bool]:
    return lambda caps: extension in caps.extensions


PROBES: Mapping[str, CompilerProbe] = {
    "half arithmetic": _probe("x[0] * x[1]", lambda caps: caps.has_fp16, "half"),
    "double arithmetic": _probe("x[0] * x[1]", lambda caps: caps.has_fp64, "double"),
    "OpenCL C 2.0": _probe("x[1]", lambda caps: caps.opencl_c >= (2, 0), opencl_c="2.0"),
    "OpenCL C 3.0": _probe("x[1]", lambda caps: caps.opencl_c >= (3, 0), opencl_c="3.0"),
    "sub-groups": _probe("sub_group_reduce_add(x[0])", _has("cl_khr_subgroups"), opencl_c="2.0"),
    "shuffles in sub-groups": _probe(
        "sub_group_shuffle(x[0], 1)", _has("cl_khr_subgroup_shuffle"), opencl_c="2.0"
    ),
    "dots of 8-bit integers": _probe(
        "dot_4x8packed_ss_int(x[0], x[1])", _has("cl_khr_integer_dot_product"), opencl_c="3.0"
    ),
}


def compiled_probes(session: DeviceSession) -> dict[str, bool]:
    """Returns whether the session's device compiles each test kernel, by its name in `PROBES`."""
    return {name: _compiles(session, probe) for name, probe in PROBES.items()}


def _compiles(session: DeviceSession, probe: CompilerProbe) -> bool:
    """Returns whether the driver compiles the source of a probe."""
    enabled = "".join(
        f"#ifdef {name}\n#pragma OPENCL EXTENSION {name} : enable\n#endif\n"
        for name in ("cl_khr_fp16", "cl_khr_fp64", "cl_khr_subgroups")
    )
    with session.lock, suppress(cl.Error), warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        program = cl.Program(session.context, enabled + probe.source)
        program.build([f"-cl-std=CL{probe.opencl_c}"], [session.device.handle], cache_dir=False)
        return True
    return False


def driver_facts(session: DeviceSession) -> dict[str, Any]:
    """Returns device properties that `DeviceCaps` lacks, by name of the pyopencl attribute.

    Values are strings or integers. Properties that the device does not have are absent.
    """
    facts: dict[str, Any] = {}
    with Guard(str(session.device)):
        for name in _REPORTED_ATTRIBUTES:
            # pyopencl raises an error, or lacks the attribute, if the device has no such value.
            with suppress(cl.Error, AttributeError):
                value = getattr(session.device.handle, name)
                facts[name] = value.strip() if isinstance(value, str) else int(value)
    return facts

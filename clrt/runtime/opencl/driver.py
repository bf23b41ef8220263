"""Access to pyopencl and the ICD loader, with errors of drivers converted to clrt's own.

The rest of `clrt/runtime` imports `cl` from this module and calls it within a `Guard`.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any

from clrt.device.caps import DeviceCaps
from clrt.errors import DeviceError, OutOfMemoryError
from clrt.runtime.opencl.cache_folders import prepare_pocl_cache
from clrt.runtime.opencl.driver_libraries import drop_code, files_before_drivers
from clrt.runtime.opencl.icd_loader import intel_platforms, remove_old_icd
from clrt.runtime.opencl.package_versions import versions_known
from clrt.runtime.opencl.pocl_settings import pocl_configured
from clrt.util.fast_dataclass import dataclass

with versions_known("pytools", "pyopencl"):
    import pyopencl as cl

__all__ = ["BUILD_ERROR_CODES", "Guard", "binary_of", "check_process", "cl", "is_left_behind"]
__all__ += [
    "device_bytes",
    "find_platforms",
    "load_drivers",
    "never_release",
    "new_context",
    "note_use",
]
__all__ += ["quiet_compiler", "status_name"]

_CODES = cl.status_code
# Status codes for exhausted memory. Drivers that allocate a buffer at its first use return any of
# them.
_OUT_OF_MEMORY_CODES = frozenset(
    {
        _CODES.MEM_OBJECT_ALLOCATION_FAILURE,
        _CODES.OUT_OF_RESOURCES,
        _CODES.OUT_OF_HOST_MEMORY,
        _CODES.INVALID_BUFFER_SIZE,  # above CL_DEVICE_MAX_MEM_ALLOC_SIZE
    }
)
# Status codes for a program that does not compile, also if the compiler stops half-way.
BUILD_ERROR_CODES = frozenset(
    {
        _CODES.BUILD_PROGRAM_FAILURE,
        _CODES.COMPILE_PROGRAM_FAILURE,
        _CODES.LINK_PROGRAM_FAILURE,
        _CODES.INVALID_BUILD_OPTIONS,
        _CODES.INVALID_KERNEL_NAME,
        _CODES.INVALID_KERNEL_DEFINITION,
        _CODES.INVALID_PROGRAM_EXECUTABLE,
    }
)
_DEVICE_LOST_CODES = frozenset(
    {_CODES.DEVICE_NOT_AVAILABLE, _CODES.DEVICE_NOT_FOUND, _CODES.INVALID_DEVICE}
)
# CL_PLATFORM_NOT_FOUND_KHR: the loader found no implementation.
_NO_PLATFORM = -1001
_SMALLER = "Use a smaller batch or close models that are not needed."


@dataclass(frozen=True)
class Guard:
    """Context manager around driver calls: converts errors of pyopencl to clrt's errors.

    Attributes:
        device: Name of the device, for error messages.
        available_bytes: Global memory that the device reports; 0 if unknown.
        used_bytes: Returns the number of bytes that clrt has allocated on the device.
    """

    device: str
    available_bytes: int = 0
    used_bytes: Callable[[], int] = int

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (cl.Error, MemoryError)):
            raise self.translated(error) from error

    def translated(self, error: cl.Error | MemoryError, nbytes: int = 0) -> DeviceError:
        """Converts an error of pyopencl to clrt's, with the failed call, status code and a remedy.

        Args:
            error: Error of pyopencl, or a MemoryError of the host.
            nbytes: Size of the failed allocation; 0 if unknown.
        """
        if isinstance(error, MemoryError):
            return self._out_of_memory("the host's memory", "MemoryError", nbytes)
        call = error.routine or "a call"
        code = status_name(error.code)
        if error.code in _OUT_OF_MEMORY_CODES:
            return self._out_of_memory(call, code, nbytes)
        if error.code in _DEVICE_LOST_CODES:
            return DeviceError(
                f"{self.device} is gone: {call} returned {code}. It was reset, unplugged or given "
                "to another process; check that `clrt devices` still lists it, and restart the "
                "process."
            )
        return DeviceError(
            f"{self.device} failed: {call} returned {code}. The model can be used again; if it "
            "fails again, restart the process, and report the error with the driver's version "
            f"and message: {error}"
        )

    def _out_of_memory(self, call: str, code: str, nbytes: int) -> OutOfMemoryError:
        amount = f" for {_size(nbytes)}" if nbytes else ""
        return OutOfMemoryError(
            f"{self.device} has not enough memory{amount}: {call} returned {code} "
            f"({_size(self.used_bytes())} are in use by clrt). {_SMALLER}",
            nbytes,
            self.available_bytes,
        )


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 1 << 20 else f"{nbytes} bytes"


def status_name(code: int) -> str:
    """Returns the name of an OpenCL status code without the prefix "CL_"; else "status <code>"."""
    try:
        return str(_CODES.to_string(code))
    except ValueError:
        return f"status {code}"


class _Quiet(threading.local):
    """Whether the current thread ignores the compiler's output."""

    on = False


_quiet = _Quiet()


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Context manager in which pyopencl does not warn of compiler output, in this thread only.

    Python's filters of warnings belong to all threads, which may compile at the same time.
    """
    _quiet.on = True
    try:
        yield
    finally:
        _quiet.on = False


def _silence(warn: Callable[[str], None]) -> Callable[[str], None]:
    """Returns pyopencl's function that warns of compiler output, silent in `quiet_compiler`."""

    @wraps(warn)
    def warn_unless_quiet(text: str) -> None:
        if not _quiet.on:
            warn(text)

    return warn_unless_quiet


if hasattr(cl, "compiler_output"):
    cl.compiler_output = _silence(cl.compiler_output)

_used_in: int | None = None


def note_use() -> None:
    """Records that this process has called a driver, so that the driver may not work in forks.

    Does nothing in a fork of a process that had recorded this already.
    """
    global _used_in
    if _used_in is None:
        _used_in = os.getpid()


def is_left_behind(caps: DeviceCaps) -> bool:
    """Returns whether a driver is unusable here because it was in use before this process forked.

    The driver's threads do not exist in the forked child, so most commands would wait forever.

    Args:
        caps: Capabilities of the driver's device.
    """
    return (
        _used_in is not None and _used_in != os.getpid() and "stays-behind-in-forks" in caps.quirks
    )


def check_process(device: object, caps: DeviceCaps) -> None:
    """Checks that a device's driver works in this process; call it before waiting for the driver.

    Args:
        device: The device, or its name, for the error's message.
        caps: Capabilities of the device.

    Raises:
        DeviceError: This process is a fork that the driver does not work in.
    """
    if is_left_behind(caps):
        raise DeviceError(
            f"{device} was in use before this process was forked, and its driver does not work in "
            "forks; start processes by multiprocessing's 'spawn', or do not use clrt before the "
            "fork."
        )


def never_release(*objects: object) -> None:
    """Leaks driver objects on purpose, because the release of an object would wait forever."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(objects))


# CL_DEVICE_SUB_GROUP_SIZES_INTEL, which pyopencl has no name for, and its extension.
_SUB_GROUP_SIZES, _REQUIRED_SIZES = 0x4108, "cl_intel_required_subgroup_size"


@cache
def _library() -> ctypes.CDLL | None:
    """Returns the ICD loader library that pyopencl uses; None if ctypes cannot call it."""
    try:
        library = ctypes.CDLL(cl._cl.__file__)
        library.clGetProgramInfo.argtypes = (
            ctypes.c_void_p,
            ctypes.c_uint32,
            ctypes.c_size_t,
            ctypes.c_void_p,
            ctypes.c_void_p,
        )
        library.clGetDeviceInfo.argtypes = library.clGetProgramInfo.argtypes
        library.clCreateContext.restype = ctypes.c_void_p
        library.clCreateKernel.restype = ctypes.c_void_p
        library.clCreateKernel.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
        library.clReleaseKernel.argtypes = (ctypes.c_void_p,)
    except (OSError, AttributeError):
        return None
    return library


@cache
def load_drivers() -> None:
    """Loads the libraries of all OpenCL implementations; drops code pages that only linking read.

    Later calls change nothing. The GIL is released meanwhile, unlike in pyopencl's own call.
    """
    known = files_before_drivers()
    library = _library()
    remove_old_icd(Path(cl.__file__).parent)
    prepare_pocl_cache()
    if library is not None:
        with pocl_configured():
            library.clGetPlatformIDs(0, None, ctypes.byref(ctypes.c_uint32()))
    intel_platforms()
    drop_code(known)


def compile_kernel(program: cl.Program, entry: str) -> None:
    """Creates and releases a kernel object, after which creating another one is fast.

    Intel's runtime compiles a kernel when its first object is created, in 1 ms and more. The GIL is
    released meanwhile, unlike in pyopencl's own call.

    Args:
        entry: Name of the kernel.
    """
    library = _library()
    if library is not None:
        kernel = library.clCreateKernel(program.int_ptr, entry.encode(), None)
        if kernel:
            library.clReleaseKernel(kernel)


def find_platforms() -> list[cl.Platform]:
    """Returns all OpenCL platforms: the ICD loader's, and Intel's runtime if pip installed it.

    Raises:
        cl.Error: The loader fails.
    """
    load_drivers()
    try:
        with pocl_configured():  # if `load_drivers` could not call the loader
            platforms = list(cl.get_platforms())
    except cl.Error as error:
        if error.code != _NO_PLATFORM:
            raise
        platforms = []
    known = {platform.int_ptr for platform in platforms}
    added = [handle for handle in intel_platforms().handles if handle not in known]
    return platforms + [cl.Platform.from_int_ptr(handle) for handle in added]


def sub_group_sizes(device: cl.Device) -> frozenset[int]:
    """Returns the sub-group sizes that a kernel may require on a device.

    Empty unless the device has `cl_intel_required_subgroup_size` and reports its sizes.
    """
    library, sizes, nbytes = _library(), (ctypes.c_size_t * 8)(), ctypes.c_size_t()
    if library is None or _REQUIRED_SIZES not in device.extensions.split():
        return frozenset()
    output = ctypes.sizeof(sizes), ctypes.byref(sizes), ctypes.byref(nbytes)
    if library.clGetDeviceInfo(device.int_ptr, _SUB_GROUP_SIZES, *output):
        return frozenset()
    return frozenset(sizes[: nbytes.value // ctypes.sizeof(ctypes.c_size_t)])


def device_bytes(device: cl.Device, number: int, nbytes: int) -> bytes:
    """Returns the raw value of a clGetDeviceInfo parameter that pyopencl has no name for.

    Args:
        number: The parameter's code (`cl_device_info`).
        nbytes: Expected size of the value.

    Returns:
        The value; b"" if the device does not know the parameter, or its value has another size.
    """
    library, size = _library(), ctypes.c_size_t()
    value = ctypes.create_string_buffer(nbytes)
    if library is None:
        return b""
    output = nbytes, value, ctypes.byref(size)
    failed = library.clGetDeviceInfo(device.int_ptr, number, *output)
    return b"" if failed or size.value != nbytes else value.raw


def new_context(*devices: cl.Device) -> cl.Context:
    """Creates an OpenCL context of devices; the first context starts their driver.

    The GIL is released meanwhile, unlike in pyopencl's own constructor.

    Args:
        devices: One or more devices of one platform.

    Raises:
        cl.Error: The driver fails.
    """
    library = _library()
    context = None
    if library is not None:
        count = len(devices)
        handles = (ctypes.c_void_p * count)(*(device.int_ptr for device in devices))
        context = library.clCreateContext(None, count, handles, None, None, None)
    if context is None:
        return cl.Context(list(devices))
    return cl.Context.from_int_ptr(context, retain=False)


def binary_of(program: cl.Program) -> bytes:
    """Returns the binary of a program built for one device; PoCL may compile it for seconds.

    The program's context may have a second device, for which there is no binary.

    The GIL is released meanwhile, unlike in pyopencl's own `get_info`.

    Raises:
        cl.Error: The driver fails.
    """
    library = _library()
    if library is None:
        binaries = map(bytes, program.get_info(cl.program_info.BINARIES))
        return next(filter(None, binaries), b"")
    nbytes = ctypes.c_size_t()
    _read_info(library, program, cl.program_info.BINARY_SIZES, None, nbytes)
    count = nbytes.value // ctypes.sizeof(ctypes.c_size_t)
    sizes = (ctypes.c_size_t * count)()
    _read_info(library, program, cl.program_info.BINARY_SIZES, sizes, nbytes)
    buffers = [ctypes.create_string_buffer(max(size, 1)) for size in sizes]
    addresses = (ctypes.c_void_p * count)(*map(ctypes.addressof, buffers))
    _read_info(library, program, cl.program_info.BINARIES, addresses, nbytes)
    raw = (buffer.raw[:size] for buffer, size in zip(buffers, sizes, strict=True))
    return next(filter(None, raw), b"")


def _read_info(
    library: ctypes.CDLL,
    program: cl.Program,
    parameter: int,
    output: ctypes.Array[Any] | None,
    nbytes: ctypes.c_size_t,
) -> None:
    """Queries a program.

    Args:
        parameter: A `cl_program_info`.
        output: Receives the value; None to ask for its size only.
        nbytes: Receives the size of the value in bytes.
    """
    size = 0 if output is None else ctypes.sizeof(output)
    code = library.clGetProgramInfo(
        program.int_ptr, int(parameter), size, output, ctypes.byref(nbytes)
    )
    if code:
        raise cl.RuntimeError(cl._cl._ErrorRecord("clGetProgramInfo", code, ""))

"""The one door to pyopencl: what a driver raises becomes an error of clrt here.

The rest of `clrt/runtime` takes `cl` from this module and works under a `Guard`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyopencl as cl

from clrt.device.caps import DeviceCaps
from clrt.errors import DeviceError, OutOfMemoryError
from clrt.runtime.opencl.cache_folders import prepare_pocl_cache
from clrt.runtime.opencl.icd_loader import intel_platforms, remove_old_icd

__all__ = ["NO_BUILD", "Guard", "binary_of", "check_process", "cl", "is_left_behind"]
__all__ += [
    "device_bytes",
    "find_platforms",
    "load_drivers",
    "never_release",
    "new_context",
    "note_use",
]
__all__ += ["status_name"]

_CODES = cl.status_code
# Drivers that allocate at a buffer's first use say so in any of these ways.
_NO_ROOM = frozenset(
    {
        _CODES.MEM_OBJECT_ALLOCATION_FAILURE,
        _CODES.OUT_OF_RESOURCES,
        _CODES.OUT_OF_HOST_MEMORY,
        _CODES.INVALID_BUFFER_SIZE,  # larger than the device's largest
    }
)
# What a compiler says of a source, or leaves behind where it breaks off.
NO_BUILD = frozenset(
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
_GONE = frozenset({_CODES.DEVICE_NOT_AVAILABLE, _CODES.DEVICE_NOT_FOUND, _CODES.INVALID_DEVICE})
# CL_PLATFORM_NOT_FOUND_KHR: the loader found no implementation.
_NO_PLATFORM = -1001
_SMALLER = "Use a smaller batch or close models that are not needed."


@dataclass(frozen=True)
class Guard:
    """Around what calls a driver: a `with` block from which no error of pyopencl comes.

    Attributes:
        device: Its name, for the message.
        available_bytes: What the device says it has; 0 where unknown.
        used_bytes: Gives what clrt has allocated there.
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
        """The error that users see: the call, its code, and what to do.

        Args:
            nbytes: The memory that was asked for; 0 where unknown.
        """
        if isinstance(error, MemoryError):
            return self._no_room("the host's memory", "MemoryError", nbytes)
        call = error.routine or "a call"
        code = status_name(error.code)
        if error.code in _NO_ROOM:
            return self._no_room(call, code, nbytes)
        if error.code in _GONE:
            return DeviceError(
                f"{self.device} is gone: {call} gave {code}. It was reset, unplugged or given to "
                "another process; see whether `clrt devices` still lists it, and start the process "
                "again."
            )
        return DeviceError(
            f"{self.device} failed: {call} gave {code}. The model can be used again; where that "
            "fails, too, start the process again, and report it with the driver's version and what "
            f"it said: {error}"
        )

    def _no_room(self, call: str, code: str, nbytes: int) -> OutOfMemoryError:
        amount = f" for {_size(nbytes)}" if nbytes else ""
        return OutOfMemoryError(
            f"{self.device} has no room{amount}: {call} gave {code} ({_size(self.used_bytes())} "
            f"are in use by clrt). {_SMALLER}",
            nbytes,
            self.available_bytes,
        )


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 1 << 20 else f"{nbytes} bytes"


def status_name(code: int) -> str:
    """The name of an OpenCL status, as the specification spells it without CL_."""
    try:
        return str(_CODES.to_string(code))
    except ValueError:
        return f"status {code}"


_used_in: int | None = None


def note_use() -> None:
    """Says that this process starts to use the driver: some start threads when first asked."""
    global _used_in
    if _used_in is None:
        _used_in = os.getpid()


def is_left_behind(caps: DeviceCaps) -> bool:
    """Whether this process is a fork of one that had used a driver which does not work in forks.

    Its threads are not in the fork, so that most commands would wait for ever.
    """
    return (
        _used_in is not None and _used_in != os.getpid() and "stays-behind-in-forks" in caps.quirks
    )


def check_process(device: object, caps: DeviceCaps) -> None:
    """Call this before anything that a driver might wait in.

    Raises:
        DeviceError: The driver does not work in this fork.
    """
    if is_left_behind(caps):
        raise DeviceError(
            f"{device} was in use before this process was forked, and its driver does not work in "
            "forks; start processes by multiprocessing's 'spawn', or call nothing of clrt before "
            "the fork."
        )


def never_release(*objects: object) -> None:
    """Keeps objects of the driver for good: to release them would wait for ever."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(objects))


# What pyopencl has no name for, and the extension that it belongs to.
_SUB_GROUP_SIZES, _REQUIRED_SIZES = 0x4108, "cl_intel_required_subgroup_size"


@cache
def _library() -> ctypes.CDLL | None:
    """The ICD loader that pyopencl uses."""
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
    except (OSError, AttributeError):
        return None
    return library


def load_drivers() -> None:
    """Has the loader load the libraries of all implementations, at the first call.

    Other threads run meanwhile, which pyopencl's own call does not let them.
    """
    library = _library()
    remove_old_icd(Path(cl.__file__).parent)
    prepare_pocl_cache()
    if library is not None:
        library.clGetPlatformIDs(0, None, ctypes.byref(ctypes.c_uint32()))
    intel_platforms()


def find_platforms() -> list[cl.Platform]:
    """Returns every OpenCL implementation: the loader's, and Intel's runtime if pip installed it.

    Raises:
        cl.Error: The loader fails.
    """
    load_drivers()
    try:
        found = list(cl.get_platforms())
    except cl.Error as error:
        if error.code != _NO_PLATFORM:
            raise
        found = []
    known = {platform.int_ptr for platform in found}
    added = [handle for handle in intel_platforms().handles if handle not in known]
    return found + [cl.Platform.from_int_ptr(handle) for handle in added]


def sub_group_sizes(device: cl.Device) -> frozenset[int]:
    """Work-items of a sub-group that kernels may ask for; none where the device does not say."""
    library, sizes, nbytes = _library(), (ctypes.c_size_t * 8)(), ctypes.c_size_t()
    if library is None or _REQUIRED_SIZES not in device.extensions.split():
        return frozenset()
    given = ctypes.sizeof(sizes), ctypes.byref(sizes), ctypes.byref(nbytes)
    if library.clGetDeviceInfo(device.int_ptr, _SUB_GROUP_SIZES, *given):
        return frozenset()
    return frozenset(sizes[: nbytes.value // ctypes.sizeof(ctypes.c_size_t)])


def device_bytes(device: cl.Device, number: int, nbytes: int) -> bytes:
    """Returns what clGetDeviceInfo has for a number that pyopencl does not know.

    Args:
        nbytes: Size of the value; b"" is returned if the device has none, or another size.
    """
    library, size = _library(), ctypes.c_size_t()
    value = ctypes.create_string_buffer(nbytes)
    if library is None:
        return b""
    given = nbytes, value, ctypes.byref(size)
    failed = library.clGetDeviceInfo(device.int_ptr, number, *given)
    return b"" if failed or size.value != nbytes else value.raw


def new_context(device: cl.Device) -> cl.Context:
    """A context of a device; the first one starts its driver.

    Other threads run meanwhile, which pyopencl's own constructor does not let them.

    Raises:
        cl.Error: There is none to be had.
    """
    library = _library()
    made = None
    if library is not None:
        handle = ctypes.c_void_p(device.int_ptr)
        made = library.clCreateContext(None, 1, ctypes.byref(handle), None, None, None)
    return cl.Context([device]) if made is None else cl.Context.from_int_ptr(made, retain=False)


def binary_of(program: cl.Program) -> bytes:
    """The binary of a program for one device; PoCL compiles for seconds to have it.

    Other threads run meanwhile, which pyopencl's own `get_info` does not let them.

    Raises:
        cl.Error: There is none to be had.
    """
    library = _library()
    if library is None:
        (binary,) = program.get_info(cl.program_info.BINARIES)
        return bytes(binary)
    size = ctypes.c_size_t()
    _ask(library, program, cl.program_info.BINARY_SIZES, size)
    text = ctypes.create_string_buffer(max(size.value, 1))
    _ask(library, program, cl.program_info.BINARIES, ctypes.c_void_p(ctypes.addressof(text)))
    return text.raw[: size.value]


def _ask(
    library: ctypes.CDLL,
    program: cl.Program,
    what: int,
    answer: ctypes.c_size_t | ctypes.c_void_p,
) -> None:
    code = library.clGetProgramInfo(
        program.int_ptr, int(what), ctypes.sizeof(answer), ctypes.byref(answer), None
    )
    if code:
        raise cl.RuntimeError(cl._cl._ErrorRecord("clGetProgramInfo", code, ""))

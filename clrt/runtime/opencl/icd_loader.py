"""Loads Intel's OpenCL CPU runtime if pip installed it: the ICD loader does not find it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import site
import sys
import sysconfig
from functools import cache
from pathlib import Path

import clrt
from clrt.util.fast_dataclass import dataclass

# Folder of Intel's runtime in a frozen application, relative to the folder of its modules:
# PyInstaller puts shared libraries there.
INTEL_FOLDER = "."
# Environment variable that restricts the ICD loaders of Linux to one library or folder.
_LOADER_CHOICE = "OCL_ICD_VENDORS"
_SUCCESS = 0


@dataclass(frozen=True)
class IcdPlatforms:
    """OpenCL platforms of a library that was loaded without the ICD loader.

    Attributes:
        handles: Each `cl_platform_id`, as an integer.
        failure: Why the library could not be loaded or lists no platform; "" if it did not fail.
    """

    handles: tuple[int, ...] = ()
    failure: str = ""


def intel_platforms() -> IcdPlatforms:
    """Loads Intel's OpenCL CPU runtime if pip installed it, and returns its platforms.

    The result has no platforms if the runtime is absent, or if OCL_ICD_VENDORS restricts the ICD
    loader to one library.

    Registers nothing: objects of an implementation with `cl_khr_icd` carry their own dispatch
    table, so every ICD loader dispatches calls to them, even if it did not find the library. (The
    .icd file in the pip package names a path of Intel's build machine.)
    """
    library = intel_library()
    if library is None or is_restricted():
        return IcdPlatforms()
    return _load_platforms(str(library))


def remove_old_icd(pyopencl_folder: Path) -> None:
    """Removes an .icd file that clrt 0.1 wrote, unless it names Intel's installed library.

    The ICD loader would load whatever library is at the path in the .icd file.

    Args:
        pyopencl_folder: Folder of the package pyopencl, whose `.libs` has the .icd files.
    """
    written = pyopencl_folder / ".libs" / "intel-cpu.icd"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if written.read_text("utf-8").strip() != str(intel_library()):
            written.unlink()


def intel_library() -> Path | None:
    """Returns the path of Intel's OpenCL CPU runtime; None if it is not installed.

    Searches pip's folders or, in a frozen application, the folders of the application.
    """
    windows = sys.platform == "win32"
    name = "intelocl64.dll" if windows else "libintelocl.so"
    if getattr(sys, "frozen", False) or "__compiled__" in vars(clrt):
        # A frozen application loads its own libraries only.
        folders = [Path(clrt.__file__).parents[1] / INTEL_FOLDER]
    else:
        folders = [Path(root, "Library/bin" if windows else "lib") for root in _data_folders()]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _data_folders() -> list[str]:
    """Returns the folders in which pip may have installed data files of packages."""
    folders = [sys.prefix, sysconfig.get_path("data")]
    if site.ENABLE_USER_SITE:
        folders.append(site.getuserbase())
    return folders


def is_restricted() -> bool:
    """Returns whether OCL_ICD_VENDORS restricts the ICD loader to a library, not to a folder."""
    chosen = os.environ.get(_LOADER_CHOICE, "")
    return bool(chosen) and not os.path.isdir(chosen)


@cache
def _load_platforms(path: str) -> IcdPlatforms:
    try:
        library = load_library(path)
        find = library.clGetExtensionFunctionAddress
    except (OSError, AttributeError) as error:
        return IcdPlatforms(failure=str(error))
    find.restype = ctypes.c_void_p
    address = find(b"clIcdGetPlatformIDsKHR")
    if not address:
        return IcdPlatforms(failure="it has no clIcdGetPlatformIDsKHR")
    prototype = ctypes.CFUNCTYPE(
        ctypes.c_int32, ctypes.c_uint32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32)
    )
    list_platforms, count = prototype(address), ctypes.c_uint32()
    code = list_platforms(0, None, ctypes.byref(count))
    platforms = (ctypes.c_void_p * count.value)()
    if code == _SUCCESS and count.value:
        code = list_platforms(count.value, ctypes.addressof(platforms), None)
    handles = tuple(handle for handle in platforms if handle)
    if code != _SUCCESS or not handles:
        return IcdPlatforms(failure=f"it lists no platform, status {code}")
    return IcdPlatforms(handles)


def load_library(path: str) -> ctypes.CDLL:
    """Loads a shared library; on Linux the GIL is released meanwhile, unlike in `ctypes.CDLL`.

    Raises:
        OSError: The library does not load.
    """
    if sys.platform == "win32":
        return ctypes.CDLL(path)  # also searches the library's own folder for dependencies
    opener = ctypes.CDLL(None).dlopen
    opener.restype = ctypes.c_void_p
    handle = opener(os.fsencode(path), ctypes.c_int(os.RTLD_LAZY | os.RTLD_LOCAL))
    return ctypes.CDLL(path, handle=handle) if handle else ctypes.CDLL(path)


def load_failure() -> str:
    """Returns a space and a sentence on why Intel's installed OpenCL runtime does not load.

    "" if the runtime loads or is not installed. One reason is the order of imports: a process has
    one TBB library, and OpenVINO's is too old for Intel's runtime.
    """
    failure = intel_platforms().failure
    if not failure:
        return ""
    return (
        f" Intel's CPU runtime is installed but does not load ({failure}); where another "
        "package has loaded an older TBB, load a model with clrt before importing that."
    )


def install_hint() -> str:
    """Returns a sentence on how to install an OpenCL implementation on this system."""
    if sys.platform == "darwin":
        return (
            "macOS has its own, but most virtual machines have no GPU for it; with pyopencl from "
            "conda-forge: conda install -c conda-forge ocl_icd_wrapper_apple (or pocl)."
        )
    if sys.platform == "win32":
        runtime = "Intel's runtime for CPUs: pip install intel-opencl-rt intel-cmplr-lib-rt"
    elif platform.machine() == "x86_64":
        runtime = 'the CPU implementation: pip install "pyopencl[pocl]"'
    else:
        runtime = "the CPU implementation: apt-get install pocl-opencl-icd (or your system's PoCL)"
    return f"Install {runtime}; or, for a GPU, its vendor's driver."

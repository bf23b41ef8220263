"""Makes OpenCL implementations that pip installed visible to the ICD loader."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import sys
from pathlib import Path

from clrt.errors import InputError
from clrt.files import replacing

# What the loader of Windows reads besides the registry, which only administrators write. It leaves
# the variable unread in their processes.
_WINDOWS_ICDS = "OCL_ICD_FILENAMES"


def register_intel_cpu() -> None:
    """Tells the loader of Intel's pip package; call this before pyopencl is imported."""
    library = _intel_library()
    if not library.exists():
        return
    if sys.platform == "win32":
        _name_library(library)
    else:
        _write_icd(library)


def _name_library(library: Path) -> None:
    """Names a library to the loader of Windows, in the environment of this process.

    It is loaded here, too: the loader does not look for what it needs in its own folder.
    """
    with contextlib.suppress(OSError):  # see `load_failure`
        ctypes.CDLL(str(library))
    named = os.environ.get(_WINDOWS_ICDS, "").split(os.pathsep)
    if str(library) not in named:
        os.environ[_WINDOWS_ICDS] = os.pathsep.join([*filter(None, named), str(library)])


def _write_icd(library: Path) -> None:
    """Writes the .icd file that Intel's pip package gets wrong, beside pyopencl's own.

    The file shipped by `intel-opencl-rt` names a path of Intel's build machine. Nothing is written
    where the folder belongs to someone else.
    """
    spec = importlib.util.find_spec("pyopencl")
    if spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).parent / ".libs"
    target = folder / "intel-cpu.icd"
    text = f"{library}\n"
    try:
        if folder.is_dir() and (not target.exists() or target.read_text("utf-8") != text):
            with replacing(target, sync=False) as stream:  # another process may be reading it
                stream.write(text.encode())
    except (OSError, InputError):
        return


def load_failure() -> str:
    """Why Intel's library, which is installed, does not load; empty where it loads or is absent.

    The ICD loader leaves such an implementation out without a word. One reason is the order of
    imports: a process has one TBB, and the one that OpenVINO brings is too old for Intel's runtime.
    """
    library = _intel_library()
    if library.exists():
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            return (
                f" Intel's CPU runtime is installed but does not load ({error}); where another "
                "package has loaded an older TBB, load a model with clrt before importing that."
            )
    return ""


def _intel_library() -> Path:
    if sys.platform == "win32":
        return Path(sys.prefix) / "Library" / "bin" / "intelocl64.dll"
    return Path(sys.prefix) / "lib" / "libintelocl.so"


def install_hint() -> str:
    """What gives this system an OpenCL device."""
    if sys.platform == "darwin":
        return (
            "macOS has its own, but most virtual machines have no GPU for it; with pyopencl from "
            "conda-forge: conda install -c conda-forge ocl_icd_wrapper_apple (or pocl)."
        )
    if sys.platform == "win32":
        runtime = "Intel's runtime for CPUs: pip install intel-opencl-rt intel-cmplr-lib-rt"
    elif platform.machine() == "x86_64":
        runtime = "the CPU implementation: pip install 'clrt[pocl]'"
    else:
        runtime = "the CPU implementation: apt-get install pocl-opencl-icd (or your system's PoCL)"
    return f"Install a GPU vendor's driver, or {runtime}."

"""Makes OpenCL implementations that pip installed visible to the ICD loader."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path

from clrt.errors import InputError
from clrt.files import replacing

_INTEL_LIBRARY = "libintelocl.so"


def register_intel_cpu() -> None:
    """Writes the .icd file that Intel's pip package gets wrong, beside pyopencl's own.

    The file shipped by `intel-opencl-rt` names a path of Intel's build machine. Nothing is written
    where the library is absent or the folder belongs to someone else.
    """
    library = _intel_library()
    spec = importlib.util.find_spec("pyopencl")
    if spec is None or spec.origin is None or not library.exists():
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
    return Path(sys.prefix) / "lib" / _INTEL_LIBRARY

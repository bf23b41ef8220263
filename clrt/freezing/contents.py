"""What an application that is frozen carries besides what imports lead to."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path, PurePosixPath

import clrt
from clrt.errors import InputError
from clrt.runtime.opencl.icd_loader import INTEL_FOLDER, intel_library

# Packages whose modules are found by the names in a folder.
SEARCHED = ("clrt.ops",)
# Modules that are imported when a name of clrt is first used.
LATER = tuple(sorted(set(clrt._HOMES.values())))
# Packages with files beside their modules.
DATA = ("clrt", "kernels_cl")
# pyopencl's files, less its .icd files: the ICD loader would load what one names, wherever that is
# on the machine of the user. PoCL's own comes with PoCL.
PYOPENCL_DATA = ("pyopencl:*.cl", "pyopencl:*.h")
# Where `clrt.runtime.opencl.linker` looks for `ld`.
LINKER_FOLDER = "clrt/shipped/linker"
POCL = "pocl-binary-distribution"
_LIBRARIES = ".libs"
_LIBC = re.compile(r"lib(c|m|dl|pthread|rt|util)\.so")
# PoCL's own functions, compiled for one kind of CPU.
# Files that Intel's runtime opens on any CPU: libraries, configuration, bitcode. On Linux these and
# those for all kinds of CPUs are 422 of the 807 MB that pip installs.
_INTEL = re.compile(
    r"libintelocl\.so|libcommon_clang\.so\.\d[\d.]*|libtbb(malloc)?\.so\.\d+"
    r"|lib(imf|svml|irng)\.so|libintlc\.so\.\d+"
    r"|intelocl64\.dll|common_clang64\.dll|tbb(12|malloc)\.dll"
    r"|(libmmd|svml_dispmd|libirngmd|libircmd)\.dll"
    r"|cl\.cfg|clbltfnshared\.rtl|cllibrary\.rtl"
)
# And its functions, compiled for one kind of CPU, with the names that `cpus` has for these.
_INTEL_BUILTINS = re.compile(r"(?:clbltfn|cllibrary|libocl_svml_)(\w\d)\.(?:rtl|o|so|dll)")
_INTEL_CPUS = {"h8": {"sse41"}, "e9": {"avx", "avx_f16c", "avx_fma4"}, "l9": {"avx2"}}
_INTEL_CPUS |= {"z0": {"avx512"}, "z1": {"avx512"}}
_INTEL_LICENCES = "share/doc/opencl/licensing"
_BUILTINS = re.compile(r"kernel-.*-(\w+)\.bc")


def pocl_files(cpus: Iterable[str] | None = None) -> list[tuple[Path, str]]:
    """PoCL as pip installed it: each file, and its folder in the bundle; none where it is absent.

    Args:
        cpus: The kinds of CPUs for which PoCL can compile, of those that it has: "sse2", "ssse3",
            "sse41", "avx", "avx_f16c", "avx_fma4", "avx2", "avx512"; None takes all. On others a
            process ends when it compiles.
    """
    wanted = None if cpus is None else set(cpus)
    return [
        (path, str(place.parent))
        for path, place in _installed()
        if wanted is None or (kind := _BUILTINS.fullmatch(place.name)) is None or kind[1] in wanted
    ]


def _installed() -> Iterator[tuple[Path, PurePosixPath]]:
    try:
        found = files(POCL) or ()
    except PackageNotFoundError:
        return
    for place in found:
        if _LIBRARIES in place.parts:
            yield Path(str(place.locate())), place


def intel_files(cpus: Iterable[str] | None = None) -> list[tuple[Path, str]]:
    """Returns the files of Intel's CPU runtime that it loads, each with its folder in the bundle.

    They are copied unchanged, as Intel's licence wants it, beside clrt, where a frozen application
    looks for them.

    Args:
        cpus: As `pocl_files` takes them; on other CPUs the runtime fails when it compiles.

    Raises:
        InputError: The runtime is not installed.
    """
    library = intel_library()
    if library is None:
        raise InputError(
            "Intel's CPU runtime is not installed, so it cannot be brought along: "
            "pip install intel-opencl-rt intel-cmplr-lib-rt."
        )
    wanted = None if cpus is None else set(cpus)
    found = []
    for path in sorted(library.parent.iterdir()):
        kind = _INTEL_BUILTINS.fullmatch(path.name)
        if kind is not None:
            is_wanted = wanted is None or bool(wanted & _INTEL_CPUS.get(kind[1], wanted))
        else:
            is_wanted = _INTEL.fullmatch(path.name) is not None
        if is_wanted:
            found.append((path, INTEL_FOLDER))
    root = library.parents[2 if sys.platform == "win32" else 1]
    texts = sorted((root / _INTEL_LICENCES).glob("*.txt"))
    return found + [(path, "clrt/shipped/licences/intel") for path in texts]


def linker() -> Path | None:
    """The linker of this machine, which PoCL needs on the other one, too; None where there is none.

    It is a program of its own: GNU's is under the GPL, which asks who passes it on for its source.
    """
    found = shutil.which("ld") if sys.platform == "linux" else None
    return None if found is None else Path(found).resolve()


def linker_libraries(path: Path) -> list[Path]:
    """The libraries that a linker loads besides libc, which every system has."""
    done = subprocess.run(["ldd", str(path)], capture_output=True, text=True)
    found = re.findall(r"^\s*(\S+) => (/\S+)", done.stdout, re.MULTILINE)
    return [Path(place) for name, place in found if not _LIBC.match(name)]


def nuitka_options(intel: bool = False) -> list[str]:
    """Returns the options by which Nuitka includes all that clrt needs.

    Args:
        intel: Includes Intel's CPU runtime.

    Raises:
        InputError: Intel's runtime is asked for, and not installed.
    """
    packages = (f"--include-package={name}" for name in SEARCHED)
    modules = (f"--include-module={name}" for name in LATER)
    data = (f"--include-package-data={name}" for name in DATA + PYOPENCL_DATA)
    files = pocl_files() + (intel_files() if intel else [])
    places = [(path, f"{to}/{path.name}".removeprefix("./")) for path, to in files]
    if (ld := linker()) is not None:
        places += [(ld, f"{LINKER_FOLDER}/ld")]
        places += [(path, f"{LINKER_FOLDER}/{path.name}") for path in linker_libraries(ld)]
    included = (f"--include-data-files={path}={place}" for path, place in places)
    return [*packages, *modules, *data, *included]

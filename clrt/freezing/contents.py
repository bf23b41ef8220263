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

# Packages whose modules are found by the names in a folder.
SEARCHED = ("clrt.ops", "clrt.decompositions")
# Modules that are imported when a name of clrt is first used.
LATER = tuple(sorted(set(clrt._HOMES.values())))
# Packages with files beside their modules.
DATA = ("clrt", "kernels_cl", "pyopencl")
# Where `clrt.runtime.linker` looks for `ld`.
LINKER_FOLDER = "clrt/shipped/linker"
POCL = "pocl-binary-distribution"
_LIBRARIES = ".libs"
_LIBC = re.compile(r"lib(c|m|dl|pthread|rt|util)\.so")
# PoCL's own functions, compiled for one kind of CPU.
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


def nuitka_options() -> list[str]:
    """The options by which Nuitka includes all that clrt needs."""
    packages = (f"--include-package={name}" for name in SEARCHED)
    modules = (f"--include-module={name}" for name in LATER)
    data = (f"--include-package-data={name}" for name in DATA)
    places = [(path, f"{to}/{path.name}") for path, to in pocl_files()]
    if (ld := linker()) is not None:
        places += [(ld, f"{LINKER_FOLDER}/ld")]
        places += [(path, f"{LINKER_FOLDER}/{path.name}") for path in linker_libraries(ld)]
    included = (f"--include-data-files={path}={place}" for path, place in places)
    return [*packages, *modules, *data, *included]

"""Files and modules that a frozen application needs, but that no import statement names."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path, PurePosixPath

import clrt
from clrt.errors import InputError
from clrt.runtime.opencl.icd_loader import INTEL_FOLDER, intel_library

# Packages whose modules clrt imports by names from an index, which no import statement shows.
SEARCHED = ("clrt.ops",)
# Packages of commands and adapters, which a frozen application imports by itself if it has them.
_ADAPTERS = ("cli", "freezing", "integrations", "onnxruntime", "ray", "sentence_transformers")
# A module of clrt, or a function in it, as code names it in a text to import it later.
_MODULE = re.compile(r"(clrt(?:\.\w+)+)(?::\w+)?")
# Packages with data files.
DATA = ("clrt", "kernels_cl")
# pyopencl's data files except its .icd files: the ICD loader would load whatever file is at the
# named path on the user's machine. PoCL has its own.
PYOPENCL_DATA = ("pyopencl:*.cl", "pyopencl:*.h")
# Folder in which `clrt.runtime.opencl.linker` looks for `ld`.
LINKER_FOLDER = "clrt/shipped/linker"
POCL = "pocl-binary-distribution"
_LIBRARIES = ".libs"
_LIBC = re.compile(r"lib(c|m|dl|pthread|rt|util)\.so")
# Files that Intel's runtime opens on any CPU: libraries, configuration, bitcode. On Linux they
# take, with the files for all kinds of CPUs, 422 of the 807 MB that pip installs.
_INTEL = re.compile(
    r"libintelocl\.so|libcommon_clang\.so\.\d[\d.]*|libtbb(malloc)?\.so\.\d+"
    r"|lib(imf|svml|irng)\.so|libintlc\.so\.\d+"
    r"|intelocl64\.dll|common_clang64\.dll|tbb(12|malloc)\.dll"
    r"|(libmmd|svml_dispmd|libirngmd|libircmd)\.dll"
    r"|cl\.cfg|clbltfnshared\.rtl|cllibrary\.rtl"
)
# Intel's built-in functions, compiled for one kind of CPU; then Intel's code of each kind -> its
# names in `cpus`.
_INTEL_BUILTINS = re.compile(r"(?:clbltfn|cllibrary|libocl_svml_)(\w\d)\.(?:rtl|o|so|dll)")
_INTEL_CPUS = {"h8": {"sse41"}, "e9": {"avx", "avx_f16c", "avx_fma4"}, "l9": {"avx2"}}
_INTEL_CPUS |= {"z0": {"avx512"}, "z1": {"avx512"}}
_INTEL_LICENCES = "share/doc/opencl/licensing"
# PoCL's built-in functions, compiled for one kind of CPU.
_BUILTINS = re.compile(r"kernel-.*-(\w+)\.bc")


@cache
def named_modules() -> tuple[str, ...]:
    """Returns the modules that clrt imports by names in string literals, as for graph recipes.

    Found by searching the sources of clrt for such literals, so that none can be forgotten.
    """
    root = Path(clrt.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] not in _ADAPTERS:
            tree = ast.parse(path.read_text("utf-8"))
            texts = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
            found |= {m[1] for t in texts if isinstance(t, str) and (m := _MODULE.fullmatch(t))}
    return tuple(sorted(name for name in found if _is_module(root.parent, name)))


def _is_module(folder: Path, name: str) -> bool:
    """Returns whether a folder of packages has a module that is not in a package of `_ADAPTERS`.

    Args:
        folder: Folder that contains the package clrt.
        name: Full name of the module.
    """
    path = folder.joinpath(*name.split("."))
    is_there = path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
    return is_there and name.split(".")[1] not in _ADAPTERS


def pocl_files(cpus: Iterable[str] | None = None) -> list[tuple[Path, str]]:
    """Returns the files of PoCL that pip installed, each with its folder in a frozen application.

    The list is empty if pip has not installed PoCL.

    Args:
        cpus: Kinds of CPUs to include PoCL's built-in functions for: "sse2", "ssse3", "sse41",
            "avx", "avx_f16c", "avx_fma4", "avx2", "avx512"; None for all. On CPUs of other kinds
            PoCL cannot compile kernels.
    """
    wanted = None if cpus is None else set(cpus)
    return [
        (path, str(target.parent))
        for path, target in _installed()
        if wanted is None or (kind := _BUILTINS.fullmatch(target.name)) is None or kind[1] in wanted
    ]


def _installed() -> Iterator[tuple[Path, PurePosixPath]]:
    """Yields (file, path relative to site-packages) of PoCL as pip installed it.

    Only files in the folder `_LIBRARIES`: libraries, and the data that they read.
    """
    try:
        paths = files(POCL) or ()
    except PackageNotFoundError:
        return
    for path in paths:
        if _LIBRARIES in path.parts:
            yield Path(str(path.locate())), path


def intel_files(cpus: Iterable[str] | None = None) -> list[tuple[Path, str]]:
    """Returns the files of Intel's CPU runtime, each with its folder in a frozen application.

    The application looks for each file in this folder. Files must be copied unchanged, as Intel's
    licence requires.

    Args:
        cpus: Kinds of CPUs to include built-in functions for: "sse41", "avx", "avx_f16c",
            "avx_fma4", "avx2", "avx512"; None for all. On CPUs of other kinds the runtime cannot
            compile kernels.

    Raises:
        InputError: The runtime is not installed.
    """
    library = intel_library()
    if library is None:
        raise InputError(
            "Intel's CPU runtime is not installed, so it cannot be included: "
            "pip install intel-opencl-rt intel-cmplr-lib-rt."
        )
    wanted = None if cpus is None else set(cpus)
    entries = []
    for path in sorted(library.parent.iterdir()):
        kind = _INTEL_BUILTINS.fullmatch(path.name)
        if kind is not None:
            is_wanted = wanted is None or bool(wanted & _INTEL_CPUS.get(kind[1], wanted))
        else:
            is_wanted = _INTEL.fullmatch(path.name) is not None
        if is_wanted:
            entries.append((path, INTEL_FOLDER))
    root = library.parents[2 if sys.platform == "win32" else 1]
    texts = sorted((root / _INTEL_LICENCES).glob("*.txt"))
    return entries + [(path, "clrt/shipped/licences/intel") for path in texts]


def linker() -> Path | None:
    """Returns the path of this machine's linker `ld`, which PoCL needs at run time.

    Returns None if there is no linker, and on systems other than Linux. The linker has a licence of
    its own: GNU's linker is under the GPL, which obliges distributors to offer its source.
    """
    path = shutil.which("ld") if sys.platform == "linux" else None
    return None if path is None else Path(path).resolve()


def linker_libraries(path: Path) -> list[Path]:
    """Returns the shared libraries that a linker loads, except libc's, which every system has.

    Args:
        path: The linker's executable.
    """
    result = subprocess.run(["ldd", str(path)], capture_output=True, text=True)
    libraries = re.findall(r"^\s*(\S+) => (/\S+)", result.stdout, re.MULTILINE)
    return [Path(location) for name, location in libraries if not _LIBC.match(name)]


def nuitka_options(intel: bool = False) -> list[str]:
    """Returns command-line options for Nuitka that include the modules and files that clrt needs.

    Args:
        intel: Whether to include Intel's CPU runtime.

    Raises:
        InputError: `intel` is set, and Intel's runtime is not installed.
    """
    packages = (f"--include-package={name}" for name in SEARCHED)
    modules = (f"--include-module={name}" for name in named_modules())
    data = (f"--include-package-data={name}" for name in DATA + PYOPENCL_DATA)
    files = pocl_files() + (intel_files() if intel else [])
    pairs = [(path, f"{to}/{path.name}".removeprefix("./")) for path, to in files]
    if (ld := linker()) is not None:
        pairs += [(ld, f"{LINKER_FOLDER}/ld")]
        pairs += [(path, f"{LINKER_FOLDER}/{path.name}") for path in linker_libraries(ld)]
    included = (f"--include-data-files={path}={target}" for path, target in pairs)
    return [*packages, *modules, *data, *included]

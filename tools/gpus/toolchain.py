"""Finds the compilers, on the PATH or below the folder CLRT_GPU_TOOLS."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

FOLDER = "CLRT_GPU_TOOLS"
_TIMEOUT_S = 300
_LIBCLC = Path("/usr/lib/clc")
CLANG = "clang-19", "clang"
AMD_BUILTINS, NVIDIA_BUILTINS = "amdgcn--amdhsa.bc", "nvptx64--nvidiacl.bc"
TOOLS = (
    *(CLANG, (AMD_BUILTINS,), (NVIDIA_BUILTINS,)),
    *(("ptxas",), ("nvdisasm",), ("ocloc",)),
)


class MissingToolError(Exception):
    """A compiler is not installed."""


class CompileError(Exception):
    """A compiler refused a program."""


@cache
def folder() -> Path | None:
    """Returns the folder of unpacked packages; None if CLRT_GPU_TOOLS is not set."""
    named = os.environ.get(FOLDER, "")
    return Path(named) if named else None


@cache
def find(*names: str) -> str:
    """Returns the path of a program or file, by the first of its names that exists.

    Raises:
        MissingToolError: None is.
    """
    root = folder()
    for name in names:
        if on_path := shutil.which(name):
            return on_path
        if (installed := _LIBCLC / name).is_file():
            return str(installed)
        below = (p for p in sorted(root.rglob(name)) if p.is_file()) if root is not None else ()
        if (found := next(iter(below), None)) is not None:
            return str(found)
    raise MissingToolError(
        f"{names[0]} is neither on the path nor below the folder that {FOLDER} names; docs/gpus.md "
        "says which packages have it."
    )


@cache
def stamp() -> str:
    """Returns a fingerprint of the compilers' files."""
    found = []
    for names in TOOLS:
        try:
            path = find(*names)
        except MissingToolError:
            continue
        state = Path(path).stat()
        found.append(f"{path} {state.st_size} {state.st_mtime_ns}")
    return "\n".join(found)


@cache
def _libraries() -> str:
    """Returns the library folders of unpacked programs."""
    root = folder()
    below = {str(p.parent) for p in root.rglob("lib*.so*")} if root is not None else set()
    return os.pathsep.join([*sorted(below), os.environ.get("LD_LIBRARY_PATH", "")])


def run(command: Sequence[str], **environment: str) -> str:
    """Runs a program and returns both of its outputs.

    Raises:
        CompileError: It fails, or takes too long.
    """
    own: Mapping[str, str] = {**os.environ, "LD_LIBRARY_PATH": _libraries(), **environment}
    try:
        done = subprocess.run(
            command,
            env=own,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{Path(command[0]).name} takes more than {_TIMEOUT_S} s.") from error
    if done.returncode:
        raise CompileError(f"{Path(command[0]).name}: {done.stdout.strip()[-1500:]}")
    return done.stdout

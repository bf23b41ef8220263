"""PyInstaller's hook for clrt; its settings are in docs/guides/frozen-apps.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PyInstaller.config import CONF
from PyInstaller.utils.hooks import (
    collect_data_files,
    collect_submodules,
    get_hook_config,
    logger,
)

from clrt.freezing import contents
from clrt.freezing.elf import without_symbols

hiddenimports = [name for package in contents.SEARCHED for name in collect_submodules(package)]
hiddenimports += contents.named_modules()
datas = [entry for package in contents.DATA for entry in collect_data_files(package)]


def hook(hook_api: Any) -> None:
    """Adds PoCL without symbols, a linker for PoCL and, if `intel` is set, Intel's CPU runtime.

    PyInstaller calls this function. It reads these settings of the spec file:

    - `cpus`: kinds of CPUs to include built-in functions for (`contents.pocl_files`);
    - `linker`: path of the linker, or False to include none;
    - `intel`: True to include Intel's CPU runtime.
    """
    cpus = get_hook_config(hook_api, "clrt", "cpus")
    if get_hook_config(hook_api, "clrt", "intel"):
        for path, folder in contents.intel_files(cpus):
            add = hook_api.add_binaries if _is_library(path) else hook_api.add_datas
            add([(str(path), folder)])
    for path, folder in contents.pocl_files(cpus):
        if _is_library(path):
            copy = _copy(without_symbols(path.read_bytes()), path.name)
            hook_api.add_binaries([(copy, folder)])
        else:
            hook_api.add_datas([(str(path), folder)])
    wanted = get_hook_config(hook_api, "clrt", "linker")
    if wanted is False:
        return
    linker = contents.linker() if wanted is None else Path(wanted)
    if linker is None:
        logger.warning(
            "clrt: PoCL needs the linker `ld`, but there is none on this machine to include."
        )
    else:
        hook_api.add_binaries([(_copy(linker.read_bytes(), "ld"), contents.LINKER_FOLDER)])


def _is_library(path: Path) -> bool:
    return ".so" in path.name or path.suffix == ".dll"


def _copy(data: bytes, name: str) -> str:
    """Writes an executable file to PyInstaller's work folder, and returns its path.

    Args:
        data: Contents of the file.
        name: File name, which the file keeps in the application.
    """
    target = Path(CONF["workpath"]) / "clrt" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    target.chmod(0o755)
    return str(target)

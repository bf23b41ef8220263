"""Cache folders for compiled programs: checks that folders are writable; chooses PoCL's folder."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from clrt.errors import warn_user
from clrt.util import env_vars
from clrt.util.files import is_private

# A file system with fewer free bytes counts as full: PoCL writes 0.1 MB per kernel.
_FULL_BYTES = 1 << 20
_POCL_VARIABLE = "POCL_CACHE_DIR"
_POCL_FOLDER = "pocl/kcache"
_SHARED_MEMORY = "/dev/shm"
_warned = False


def why_unusable(folder: Path) -> str:
    """Returns the reason why a folder cannot serve as a cache; "" if it can.

    A folder that does not exist yet is judged by its nearest existing parent. Writes nothing.
    """
    try:
        parent = folder.absolute()
        while not parent.exists() and parent != parent.parent:
            parent = parent.parent
        if not parent.is_dir():
            return f"'{parent}' is not a folder"
        if not os.access(parent, os.W_OK | os.X_OK):
            return f"'{parent}' cannot be written"
        if parent == folder.absolute() and not is_private(parent.stat()):
            return "other users can write to it; close it by chmod go-w"
        if shutil.disk_usage(parent).free < _FULL_BYTES:
            return "its file system is full"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def warn_if_unusable(folder: Path) -> None:
    """Warns if a folder cannot cache compiled programs; at most once per process."""
    global _warned
    if not _warned and (reason := why_unusable(folder)):
        _warned = True
        warn_user(
            f"Compiled programs cannot be kept in '{folder}' ({reason}), so each process compiles "
            "them anew; set CLRT_CACHE_DIR to a folder that can be written."
        )


def prepare_pocl_cache() -> None:
    """Sets PoCL's cache folder, by POCL_CACHE_DIR, if its default folder is not usable.

    PoCL lists no device if it cannot write to its cache. Tries a folder in clrt's cache folder,
    then a temporary folder that is removed when this process ends. Only on Linux. Call it before
    the ICD loader's first call.
    """
    if sys.platform != "linux":
        return
    default = _pocl_default()
    if default is not None and not why_unusable(default):
        return
    folder = env_vars.cache_dir() / "pocl"
    if why_unusable(folder):
        temporary = _make_temporary()
        if temporary is None:
            return
        folder = temporary
    os.environ[_POCL_VARIABLE] = str(folder)


def _pocl_default() -> Path | None:
    """Returns the cache folder that PoCL uses according to the environment.

    None if no environment variable names a folder: PoCL then uses /tmp, to which any user can
    write.
    """
    if named := os.environ.get(_POCL_VARIABLE):
        return Path(named)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches, _POCL_FOLDER)
    home = os.environ.get("HOME")
    return Path(home, ".cache", _POCL_FOLDER) if home else None


def _make_temporary() -> Path | None:
    """Creates a temporary folder that is removed when this process ends.

    None if neither the system's temporary folder nor /dev/shm is writable and has free space.
    """
    try:
        parents = [tempfile.gettempdir(), _SHARED_MEMORY]
    except OSError:
        parents = [_SHARED_MEMORY]
    for parent in parents:
        # Any user can write to the parents; the folder itself is private.
        if not os.access(parent, os.W_OK | os.X_OK):
            continue
        if shutil.disk_usage(parent).free >= _FULL_BYTES:
            folder = Path(tempfile.mkdtemp(prefix="clrt-", dir=parent))
            atexit.register(_remove, folder, os.getpid())
            return folder
    return None


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a fork must not remove it
        shutil.rmtree(folder, ignore_errors=True)

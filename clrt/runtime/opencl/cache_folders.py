"""Folders that compiled programs are kept in, and what to do where none can be written."""

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

# Free bytes below which a file system counts as full: PoCL writes 0.1 MB for each kernel.
_FULL_BYTES = 1 << 20
_POCL_VARIABLE = "POCL_CACHE_DIR"
_POCL_FOLDER = "pocl/kcache"
_SHARED_MEMORY = "/dev/shm"
_warned = False


def why_unusable(folder: Path) -> str:
    """Returns why files cannot be kept in a folder that may not exist yet; "" if they can.

    Nothing is written.
    """
    try:
        place = folder.absolute()
        while not place.exists() and place != place.parent:
            place = place.parent
        if not place.is_dir():
            return f"'{place}' is not a folder"
        if not os.access(place, os.W_OK | os.X_OK):
            return f"'{place}' cannot be written"
        if place == folder.absolute() and not is_private(place.stat()):
            return "other users can write to it; close it by chmod go-w"
        if shutil.disk_usage(place).free < _FULL_BYTES:
            return "its file system is full"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def warn_if_unusable(folder: Path) -> None:
    """Warns, once in a process, if compiled programs cannot be kept in a folder."""
    global _warned
    if not _warned and (reason := why_unusable(folder)):
        _warned = True
        warn_user(
            f"Compiled programs cannot be kept in '{folder}' ({reason}), so each process compiles "
            "them anew; set CLRT_CACHE_DIR to a folder that can be written."
        )


def prepare_pocl_cache() -> None:
    """Names a folder to PoCL, which has no device where it cannot write to its cache.

    Its own default stays where that is usable; else clrt's cache folder is taken, else a temporary
    folder that goes with this process. Call this before the ICD loader's first call.
    """
    if sys.platform != "linux":
        return
    own = _pocl_default()
    if own is not None and not why_unusable(own):
        return
    folder = env_vars.cache_dir() / "pocl"
    if why_unusable(folder):
        temporary = _make_temporary()
        if temporary is None:
            return
        folder = temporary
    os.environ[_POCL_VARIABLE] = str(folder)


def _pocl_default() -> Path | None:
    """Where PoCL would keep programs; None for /tmp, where anybody may have put some."""
    if named := os.environ.get(_POCL_VARIABLE):
        return Path(named)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches, _POCL_FOLDER)
    home = os.environ.get("HOME")
    return Path(home, ".cache", _POCL_FOLDER) if home else None


def _make_temporary() -> Path | None:
    """Makes a folder that is removed when this process ends; None if there is no place for one."""
    try:
        places = [tempfile.gettempdir(), _SHARED_MEMORY]
    except OSError:
        places = [_SHARED_MEMORY]
    for place in places:
        # Anybody may write to these; the folder itself is closed to others.
        if not os.access(place, os.W_OK | os.X_OK):
            continue
        if shutil.disk_usage(place).free >= _FULL_BYTES:
            made = Path(tempfile.mkdtemp(prefix="clrt-", dir=place))
            atexit.register(_remove, made, os.getpid())
            return made
    return None


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # and not in a fork
        shutil.rmtree(folder, ignore_errors=True)

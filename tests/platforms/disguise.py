"""Disguises this process as one on another operating system, for Python code.

`sys.platform` says so, what the other system has not is gone (modules, functions, flags, folders
such as /proc), and what it forbids fails: Windows neither replaces, renames nor removes a file that
is open or mapped. Drivers, the kernel and compiled packages are still those of Linux.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import io
import mmap
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import Any

_MACHINES = {"win32": ("Windows", "AMD64"), "darwin": ("Darwin", "arm64")}
_NO_MODULES = {
    "win32": "fcntl resource pwd grp termios tty pty syslog readline",
    "darwin": "",
}
_NO_FUNCTIONS = {
    "win32": "fork forkpty register_at_fork getuid geteuid getgid getegid getgroups getpgid "
    "setsid killpg nice getloadavg sched_getaffinity sched_setaffinity pread pwrite preadv "
    "pwritev sysconf confstr mkfifo mknod statvfs chown lchown fchown posix_fadvise "
    "posix_fallocate memfd_create pidfd_open wait3 wait4 sync O_NONBLOCK O_NOFOLLOW O_CLOEXEC "
    "O_DIRECTORY O_SYNC O_TMPFILE",
    "darwin": "sched_getaffinity sched_setaffinity posix_fadvise posix_fallocate memfd_create "
    "pidfd_open O_DIRECT",
}
_NO_FOLDERS = ("/proc/", "/sys/", "/dev/")

_open, _listdir, _readlink, _realpath = builtins.open, os.listdir, os.readlink, os.path.realpath


def disguise(system: str) -> None:
    """Applies the disguise; call it after all imports of the standard library and packages."""
    name, machine = _MACHINES[system]
    sys.platform = system
    platform.system = lambda: name
    platform.machine = lambda: machine
    for module in _NO_MODULES[system].split():
        sys.modules[module] = None  # type: ignore[assignment]
    shutil.disk_usage = _usage_by(os.statvfs)  # it asks the system that it was imported on
    for function in _NO_FUNCTIONS[system].split():
        if hasattr(os, function):
            delattr(os, function)
    _hide_folders()
    if system == "win32":
        _as_windows()


def _usage_by(statvfs: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def usage(path: Any) -> Any:
        found = statvfs(path)
        total, free = (n * found.f_frsize for n in (found.f_blocks, found.f_bavail))
        return shutil._ntuple_diskusage(total, total - free, free)

    return usage


def _hide_folders() -> None:
    def without(function: Callable[..., Any]) -> Callable[..., Any]:
        def looks(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, int) and _is_hidden(os.fspath(path)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return function(path, *args, **kwargs)

        return looks

    builtins.open = io.open = without(_open)  # type: ignore[assignment]
    os.open, os.stat, os.scandir = map(without, (os.open, os.stat, os.scandir))  # type: ignore[assignment]


def _is_hidden(path: str | bytes) -> bool:
    text = os.fsdecode(path)
    return text.startswith(_NO_FOLDERS) and text != os.devnull


def _as_windows() -> None:
    for name in ("MADV_DONTNEED", "MADV_WILLNEED", "MADV_NORMAL", "MADV_RANDOM"):
        delattr(mmap, name)
    for name in ("SIGALRM", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGHUP", "alarm", "setitimer"):
        delattr(signal, name)
    tempfile.TemporaryFile = tempfile.NamedTemporaryFile  # the other removes an open file
    for name in ("replace", "rename", "unlink", "remove", "truncate"):
        setattr(os, name, _refusing(getattr(os, name)))

    class WindowsCDLL(ctypes.CDLL):
        def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
            if name is None:
                raise TypeError("bad argument type for built-in operation")
            super().__init__(name, *args, **kwargs)

    ctypes.CDLL = WindowsCDLL  # type: ignore[misc]


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of `os` to fail if one of its paths is in use."""

    def changes(*paths: Any, **kwargs: Any) -> Any:
        for path in paths:
            if isinstance(path, (str, os.PathLike)) and in_use(path):
                raise PermissionError(errno.EACCES, "Access is denied", path)
        return function(*paths, **kwargs)

    return changes


def in_use(path: str | os.PathLike[str]) -> bool:
    """Whether this process has a file open or mapped."""
    real = _realpath(path)
    for number in _listdir("/proc/self/fd"):
        try:
            if _readlink(f"/proc/self/fd/{number}") == real:
                return True
        except OSError:  # the folder was open while it was listed
            continue
    with _open("/proc/self/maps", encoding="utf-8") as maps:
        return any(line.rstrip("\n").endswith(f" {real}") for line in maps)

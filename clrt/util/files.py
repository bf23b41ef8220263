"""File access: atomic writes, bounded reads, and checks of paths from users and from models."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

from clrt.errors import InputError, ModelError

# Age in seconds from which a temporary file counts as abandoned on Windows, which has no file locks
# here: it neither removes nor renames an open file.
_ABANDONED_AGE_S = 60.0
# Total time and interval, in seconds, of retries to replace a file on Windows: virus scanners and
# indexers open new files for a moment.
_REPLACE_TIMEOUT_S, _REPLACE_RETRY_S = 1.0, 0.02
# Path length from which the prefix `\\?\` is added on Windows: its limit of 260 characters, less
# space for the names of temporary files in the same folder.
_MAX_PLAIN_PATH_CHARS = 160
# Folder of files bundled into frozen applications: `programs` and `linker`.
SHIPPED = Path(__file__).parents[1] / "shipped"


@contextlib.contextmanager
def atomic_write(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """Context manager: yields the stream of a temporary file that replaces `path` at the end.

    If the block raises or the process dies, `path` is unchanged. The next write to `path` removes
    temporary files of dead processes. If `path` is a symbolic link, the link stays and its target
    is replaced. A device or a pipe is written to directly.

    Args:
        path: File to write.
        sync: Whether to wait for the disk (fsync), so that the file survives a loss of power.

    Raises:
        InputError: The file cannot be written.
    """
    final = _extended(os.path.realpath(path))  # no file's name if /dev/stdout is a pipe
    try:
        if path.exists() and not path.is_file():
            with open(path, "wb") as device:
                yield device
            return
        _remove_abandoned(final)
        stream, temporary = _open_beside(final)
        try:
            with stream:
                yield stream
                stream.flush()
                if sync:
                    os.fsync(stream.fileno())
                if sys.platform != "win32":  # while the stream still holds the lock
                    os.replace(temporary, final)
            if sys.platform == "win32":
                _replace_unused(temporary, final)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}.") from error


@contextlib.contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Context manager: yields a temporary path, whose file is moved to `path` at the end.

    The yielded path is in a temporary folder and has the name of `path`. Other files that the block
    writes to the temporary folder are moved to the folder of `path`. If the block raises, `path` is
    unchanged and no file remains. If `path` is a symbolic link, the link stays and its target is
    replaced. If `path` is a device or a pipe, `path` itself is yielded.

    Raises:
        InputError: The folder of `path` is not writable, or a file cannot be replaced.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    final = Path(os.path.realpath(path))
    try:
        folder = Path(tempfile.mkdtemp(prefix=".clrt-", dir=final.parent))
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}.") from error
    try:
        yield folder / path.name
        try:
            # The main file moves last, so that the files it refers to exist by then.
            for source in sorted(folder.iterdir(), key=lambda one: one.name == path.name):
                target = final if source.name == path.name else final.parent / source.name
                _replace(source, target)
        except OSError as error:
            raise InputError(f"'{path}' cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace(temporary: Path, final: Path) -> None:
    if sys.platform == "win32":
        _replace_unused(temporary, final)
    else:
        os.replace(temporary, final)


def _replace_unused(temporary: Path, final: Path) -> None:
    """Moves a file over another on Windows, retrying while a program has the target open.

    Args:
        temporary: The file to move.
        final: The path to move it to.

    Raises:
        InputError: The target stays open in a program, or is read-only.
    """
    end = time.monotonic() + _REPLACE_TIMEOUT_S
    while True:
        try:
            return os.replace(temporary, final)
        except PermissionError as error:
            if time.monotonic() > end:
                raise _in_use(final) from error
        time.sleep(_REPLACE_RETRY_S)


def _identity(path: Path) -> object:
    """Returns a key of a file, equal for all paths of the file, such as links or other case."""
    try:
        status = os.stat(path)
        return status.st_dev, status.st_ino
    except OSError:
        return os.path.normcase(os.path.realpath(path))


def _check_unused(path: str) -> None:
    """Checks on Windows that no program has a file open, by renaming the file to itself.

    Raises:
        InputError: A program has the file open, or the file is read-only.
    """
    try:
        os.rename(path, path)
    except PermissionError as error:
        raise _in_use(path) from error


def _in_use(path: str | Path) -> InputError:
    """Returns the error for a file that is read-only or open in a program, on Windows."""
    return InputError(
        f"'{path}' cannot be replaced: it is read-only, or a program has it open, for example one "
        "that holds a model loaded from it; release that model, or name another file."
    )


def _open_beside(final: Path) -> tuple[BinaryIO, Path]:
    """Creates a temporary file in the folder of `final` and locks it.

    Returns:
        The open stream, and the path of the temporary file.
    """
    while True:
        temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
        stream = open(temporary, "xb")  # noqa: SIM115
        try:
            # Before it was locked, another process may have removed it as abandoned.
            if not _lock(stream.fileno(), wait=True) or os.fstat(stream.fileno()).st_nlink:
                return stream, temporary
        except BaseException:
            stream.close()
            raise
        stream.close()


def _remove_abandoned(final: Path) -> None:
    """Removes temporary files for writing `final` that were left by dead processes."""
    name = re.compile(re.escape(f".{final.name}.") + "[0-9a-f]{32}")
    with contextlib.suppress(OSError), os.scandir(final.parent) as entries:
        for entry in [e for e in entries if name.fullmatch(e.name)]:
            with contextlib.suppress(OSError):
                if not entry.is_file(follow_symlinks=False):
                    continue
                if sys.platform != "win32":
                    _remove_unlocked(entry.path)
                elif time.time() - entry.stat().st_mtime > _ABANDONED_AGE_S:
                    os.unlink(entry.path)


def _remove_unlocked(path: str) -> None:
    """Removes a file unless a process has locked it."""
    descriptor = os.open(path, os.O_RDWR | _flags("O_NOFOLLOW", "O_NONBLOCK"))
    try:
        if _lock(descriptor, wait=False):
            os.unlink(path)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Locks an open file until it is closed or the process ends; returns whether this succeeds.

    Fails on Windows, on file systems without locks, and if another process has the lock.

    Args:
        descriptor: File descriptor.
        wait: Whether to wait for another process to release the lock.
    """
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Locks a file while the context lasts, and removes it then; creates it before.

    The lock ends with the process. Without locks, as on Windows, each process has its own claim.

    Yields:
        False if another process has the lock.
    """
    descriptor = -1
    if sys.platform != "win32":
        flags = os.O_RDWR | os.O_CREAT | _flags("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC")
        with contextlib.suppress(OSError):
            descriptor = os.open(path, flags, 0o600)
    if descriptor < 0:
        yield True
        return
    try:
        is_free = _lock(descriptor, wait=False)
        yield is_free
        if is_free:
            with contextlib.suppress(OSError):
                os.unlink(path)
    finally:
        os.close(descriptor)


def read_regular(path: Path, most_bytes: int, *, private: bool = False) -> bytes:
    """Reads a regular file; rejects pipes and devices, which could block.

    Args:
        path: The file.
        most_bytes: Maximum size of the file in bytes.
        private: Whether to require that only this user or root owns and can write the file and its
            folder, and that the file is not a link.

    Raises:
        OSError: The file is absent, not regular, too large, or not private.
    """
    flags = ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", *(["O_NOFOLLOW"] if private else []))
    with open(os.open(path, os.O_RDONLY | _flags(*flags)), "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        if private and not (is_private(status) and is_private(path.parent.stat())):
            raise OSError("other users can write it, or into its folder")
        if status.st_size > most_bytes:
            raise OSError(f"it has {status.st_size} bytes")
        return stream.read(most_bytes)


def parse_json(data: str | bytes) -> Any:
    """Parses JSON text from an untrusted source.

    Raises:
        ValueError: The text is not JSON, nests too deep, or has a number of thousands of digits.
    """
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def stays_below(name: str) -> bool:
    """Returns whether a path is relative, without ".." and NUL, by POSIX's and Windows' rules."""
    windows = PureWindowsPath(name)
    return not (
        "\0" in name
        or ".." in windows.parts
        or windows.drive
        or windows.root
        or PurePosixPath(name).is_absolute()
    )


def check_link(path: Path, folder: Path) -> None:
    """Checks that a path in a model folder does not lead out of the folder by symbolic links.

    Links of a Hugging Face cache, from `snapshots/REVISION` to its `blobs`, are allowed. A path
    that does not exist passes.

    Args:
        path: A file or folder below `folder`.
        folder: The model folder, which may itself be a link.

    Raises:
        ModelError: The path resolves to a path outside the folder, or cannot be resolved.
    """
    try:
        real, roots = path.resolve(), [folder.resolve()]
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a cycle of links
        raise ModelError(f"'{path}' cannot be read: {error}.") from error
    for base in (folder.absolute(), roots[0]):
        snapshots = next((p for p in base.parents if p.name == "snapshots"), None)
        if snapshots is not None:
            roots.append(snapshots.parent.resolve() / "blobs")
    if not any(real.is_relative_to(root) for root in roots):
        raise ModelError(
            f"'{path}' links to '{real}', outside the model's folder; put the file itself there."
        )


def _flags(*names: str) -> int:
    """Returns the union of the named flags of `os.open`; flags that the system lacks are 0."""
    return sum(getattr(os, name, 0) for name in names)


def is_private(status: os.stat_result) -> bool:
    """Returns whether only this user or root can write a file or folder; on Windows always True.

    Args:
        status: Result of `os.stat` for the file or folder.
    """
    if sys.platform == "win32":  # folders of users are not writable by others
        return True
    return status.st_uid in (0, os.getuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def expanded(path: str | Path) -> Path:
    """Returns a path with a leading `~` replaced by the home folder.

    The `~` of an unknown user stays. On Windows, a long path gets the prefix for paths of more than
    260 characters.
    """
    try:
        return _extended(os.path.expanduser(path))
    except ValueError:  # the user name contains a NUL
        return Path(path)


def _extended(path: str) -> Path:
    """Returns a path; on Windows, with the prefix `\\\\?\\` if it is long."""
    if sys.platform == "win32" and len(full := os.path.abspath(path)) > _MAX_PLAIN_PATH_CHARS:
        return Path(long_windows_path(full))
    return Path(path)


def long_windows_path(path: str) -> str:
    r"""Returns an absolute Windows path with the prefix that allows more than 260 characters.

    Source: https://learn.microsoft.com/windows/win32/fileio/maximum-file-path-limitation.
    """
    if path.startswith(("\\\\?\\", "\\\\.\\")):
        return path
    return f"\\\\?\\UNC{path[1:]}" if path.startswith("\\\\") else f"\\\\?\\{path}"


def make_cache_folder(folder: Path) -> None:
    """Creates a folder and its parents with mode 0700, unless it exists.

    Raises:
        InputError: The folder cannot be created.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"'{folder}' cannot be created: {error.strerror}.") from error


def check_targets(
    targets: Mapping[str, Path | None],
    sources: Iterable[Path] = (),
    suffixes: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Checks that all output files of a command can be written, before any work is done.

    Args:
        targets: Output file by command-line option; None if the option is absent.
        sources: Input files.
        suffixes: Allowed suffixes, such as ".npz", by option; None to allow all suffixes. Pipes and
            devices may have any name.

    Raises:
        InputError: A target's suffix is not one of `suffixes`.
        InputError: A target is "-", a folder, one of `sources` or the target of two options; its
            folder is missing or read-only; or, on Windows, a program has it open.
    """
    users = {_identity(source): "what is read" for source in sources}
    for option, path in targets.items():
        if path is None:
            continue
        if str(path) == "-":
            raise InputError(f"{option} cannot write to standard output; name a file.")
        if not path.parent.is_dir():
            raise InputError(f"'{path.parent}' is not a folder; {option} needs an existing one.")
        if path.is_dir():
            raise InputError(f"'{path}' is a folder; {option} needs a file name.")
        if path.exists() and not path.is_file():
            continue
        final, file = os.path.realpath(path), _identity(path)
        if file in users:
            raise InputError(f"'{path}' belongs to {users[file]}; name another file by {option}.")
        users[file] = option
        _check_suffix(option, path, (suffixes or {}).get(option, ()))
        try:
            with tempfile.TemporaryFile(dir=os.path.dirname(final)):
                pass
            if sys.platform == "win32" and os.path.exists(final):
                _check_unused(final)
        except OSError as error:
            raise InputError(f"'{path}' cannot be written: {error.strerror}.") from error


def _check_suffix(option: str, path: Path, suffixes: Sequence[str]) -> None:
    if suffixes and path.suffix.lower() not in suffixes:
        raise InputError(
            f"'{path}' does not end in {' or '.join(suffixes)}, the format that {option} writes."
        )

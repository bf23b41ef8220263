"""Paths as users give them; files that are written atomically and read safely."""

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

# Windows neither removes nor renames an open file, so it needs no locks. A file of this age is not
# about to be renamed.
_SETTLED_S = 60.0
# For how long a file that cannot be replaced there is tried again, and how often: scanners and
# indexers open new files for a moment.
_PATIENCE_S, _AGAIN_S = 1.0, 0.02
# What Windows takes as a path without the prefix `\\?\`, less the names of files beside it.
_LONGEST_PATH = 160
# What an application that is frozen brings along for clrt: `programs` and `linker`.
SHIPPED = Path(__file__).parents[1] / "shipped"


@contextlib.contextmanager
def atomic_write(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A stream to a file beside `path`, which replaces `path` once all is written.

    If the block raises or the process dies, `path` is unchanged. The next process to write `path`
    removes what a dead one left behind. A link stays, and its target is replaced. A device or a
    pipe is written to directly.

    Args:
        sync: Survive a loss of power, too, which takes a wait for the disk.

    Raises:
        InputError: The file cannot be written.
    """
    final = _extended(os.path.realpath(path))  # names no file where /dev/stdout is a pipe
    try:
        if path.exists() and not path.is_file():
            with open(path, "wb") as there:
                yield there
            return
        _remove_abandoned(final)
        stream, temporary = _open_beside(final)
        try:
            with stream:
                yield stream
                stream.flush()
                if sync:
                    os.fsync(stream.fileno())
                if sys.platform != "win32":  # as long as it is locked
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
    """A path of the same name in a folder beside `path`, whose files move there after the block.

    If the block raises, `path` is unchanged and nothing stays. A link stays, and its target is
    replaced. A device or a pipe is given as it is.

    Raises:
        InputError: No file can be written there.
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
            # The file itself comes last: what lies beside it is there by then.
            for made in sorted(folder.iterdir(), key=lambda one: one.name == path.name):
                goal = final if made.name == path.name else final.parent / made.name
                _replace(made, goal)
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
    """Moves a file over one that no program has open, which is what Windows allows.

    Raises:
        InputError: One has it open, or it is read-only.
    """
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return os.replace(temporary, final)
        except PermissionError as error:
            if time.monotonic() > end:
                raise _in_use(final) from error
        time.sleep(_AGAIN_S)


def _identity(path: Path) -> object:
    """What two names of one file have in common: some systems take upper case for lower case."""
    try:
        status = os.stat(path)
        return status.st_dev, status.st_ino
    except OSError:
        return os.path.normcase(os.path.realpath(path))


def _check_unused(path: str) -> None:
    """Fails where a program has a file open: then Windows does not rename it, not even to itself.

    Raises:
        InputError: One has, or the file is read-only.
    """
    try:
        os.rename(path, path)
    except PermissionError as error:
        raise _in_use(path) from error


def _in_use(path: str | Path) -> InputError:
    """The error for a file that Windows keeps as it is."""
    return InputError(
        f"'{path}' cannot be replaced: it is read-only, or a program has it open, as one does that "
        "holds a model which was loaded from it; let go of that model, or name another file."
    )


def _open_beside(final: Path) -> tuple[BinaryIO, Path]:
    """A new file that will replace `final`; locked while it is open."""
    while True:
        temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
        stream = open(temporary, "xb")  # noqa: SIM115
        try:
            # Between the two lines it had no lock, and somebody may have removed it.
            if not _lock(stream.fileno(), wait=True) or os.fstat(stream.fileno()).st_nlink:
                return stream, temporary
        except BaseException:
            stream.close()
            raise
        stream.close()


def _remove_abandoned(final: Path) -> None:
    """Removes the unfinished files of dead processes for `final`."""
    name = re.compile(re.escape(f".{final.name}.") + "[0-9a-f]{32}")
    with contextlib.suppress(OSError), os.scandir(final.parent) as entries:
        for entry in [e for e in entries if name.fullmatch(e.name)]:
            with contextlib.suppress(OSError):
                if not entry.is_file(follow_symlinks=False):
                    continue
                if sys.platform != "win32":
                    _remove_unlocked(entry.path)
                elif time.time() - entry.stat().st_mtime > _SETTLED_S:
                    os.unlink(entry.path)


def _remove_unlocked(path: str) -> None:
    """Removes a file if no process has locked it."""
    descriptor = os.open(path, os.O_RDWR | _flags("O_NOFOLLOW", "O_NONBLOCK"))
    try:
        if _lock(descriptor, wait=False):
            os.unlink(path)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Locks an open file until it is closed or the process ends. False if another process has the
    lock, or if the file system or Windows has no such locks.
    """
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def read_regular(path: Path, most_bytes: int, *, private: bool = False) -> bytes:
    """The bytes of a regular file. Never waits, as reading a pipe would.

    Args:
        private: Whether it and its folder must belong to this user, or to who installs programs,
            and be closed to others; it may then be no link.

    Raises:
        OSError: It is absent, no regular file, too large, or not private.
    """
    wanted = ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", *(["O_NOFOLLOW"] if private else []))
    with open(os.open(path, os.O_RDONLY | _flags(*wanted)), "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no regular file")
        if private and not (is_private(status) and is_private(path.parent.stat())):
            raise OSError("other users can write it, or into its folder")
        if status.st_size > most_bytes:
            raise OSError(f"it has {status.st_size} bytes")
        return stream.read(most_bytes)


def parse_json(data: str | bytes) -> Any:
    """Returns the value of JSON text from outside.

    Raises:
        ValueError: It is not JSON, nests too deep, or has a number of thousands of digits.
    """
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it nests too deep") from error


def stays_below(name: str) -> bool:
    """Whether a path is relative and has no "..", by the rules of POSIX and of Windows."""
    windows = PureWindowsPath(name)
    return not (
        "\0" in name
        or ".." in windows.parts
        or windows.drive
        or windows.root
        or PurePosixPath(name).is_absolute()
    )


def check_link(path: Path, folder: Path) -> None:
    """Refuses a path of a model folder that links lead out of the folder.

    Links of a Hugging Face cache, from `snapshots/REVISION` to `blobs` beside it, are allowed. A
    path that does not exist passes.

    Args:
        path: A file or folder below `folder`.
        folder: The model folder, which may itself be a link.

    Raises:
        ModelError: The path resolves to one outside of the folder.
    """
    try:
        real, roots = path.resolve(), [folder.resolve()]
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle
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
    """Flags of `os.open`, as far as the system has them."""
    return sum(getattr(os, name, 0) for name in names)


def is_private(status: os.stat_result) -> bool:
    """Whether only this user, or who installs programs, can write to a file or folder."""
    if sys.platform == "win32":  # the folders of users are closed to others
        return True
    return status.st_uid in (0, os.getuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def expanded(path: str | Path) -> Path:
    """A path with a leading `~` replaced by the home folder, of any length. The `~` of an unknown
    user stays.
    """
    try:
        return _extended(os.path.expanduser(path))
    except ValueError:  # the name of the user has a NUL
        return Path(path)


def _extended(path: str) -> Path:
    """A path that Windows takes however long it is: a long one with the prefix that it wants."""
    if sys.platform == "win32" and len(whole := os.path.abspath(path)) > _LONGEST_PATH:
        return Path(long_windows_path(whole))
    return Path(path)


def long_windows_path(path: str) -> str:
    r"""An absolute path of Windows in the form that may have more than 260 letters.

    Source: https://learn.microsoft.com/windows/win32/fileio/maximum-file-path-limitation.
    """
    if path.startswith(("\\\\?\\", "\\\\.\\")):
        return path
    return f"\\\\?\\UNC{path[1:]}" if path.startswith("\\\\") else f"\\\\?\\{path}"


def make_cache_folder(folder: Path) -> None:
    """Makes a folder, closed to other users, where there is none.

    Raises:
        InputError: The folder cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"'{folder}' cannot be made: {error.strerror}.") from error


def check_targets(
    targets: Mapping[str, Path | None],
    sources: Iterable[Path] = (),
    suffixes: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Fails before the work rather than after it, and before anything is overwritten.

    Args:
        targets: The file to write by option; None where there is none.
        sources: Files that are read.
        suffixes: The suffixes by option that a file of its format may have, such as ".npz"; pipes
            and devices have any name.

    Raises:
        InputError: A target has another suffix than its format.
        InputError: A target cannot be written: its folder is missing or read-only; it is a folder,
            one of `sources`, the target of two options or, on Windows, open; or it is "-", and
            another option writes to standard output, too.
    """
    taken = {_identity(source): "what is read" for source in sources}
    for option, path in targets.items():
        if path is None:
            continue
        if str(path) == "-":
            raise InputError(f"{option} writes no standard output; name a file.")
        if not path.parent.is_dir():
            raise InputError(f"'{path.parent}' is no folder; {option} needs one that exists.")
        if path.is_dir():
            raise InputError(f"'{path}' is a folder; {option} needs a file name.")
        if path.exists() and not path.is_file():
            continue
        final, file = os.path.realpath(path), _identity(path)
        if file in taken:
            raise InputError(f"'{path}' belongs to {taken[file]}; name another file by {option}.")
        taken[file] = option
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
            f"'{path}' does not end in {' or '.join(suffixes)}, which {option} is written as."
        )

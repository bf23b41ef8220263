"""Atomic writes, checks of output paths, and private cache folders."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from clrt.errors import InputError
from clrt.util.files import atomic_write, check_targets, expanded, make_cache_folder


def test_atomic_write_follows_symlink(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to(real)
    with atomic_write(link) as stream:
        stream.write(b"new")
        assert real.read_bytes() == b"old"
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


_WRITER = """
import sys
from pathlib import Path
from clrt.util.files import atomic_write
with atomic_write(Path(sys.argv[1])) as stream:
    stream.write(b"half")
    stream.flush()
    print("writing", flush=True)
    sys.stdin.readline()
"""


def _writer(path: Path) -> subprocess.Popen[str]:
    """Starts a process that is writing a file and ends when given a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def test_temporary_file_of_killed_writer_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "m.clrt"
    path.write_bytes(b"old")
    others = [tmp_path / f".{name}.{'0' * 32}" for name in ("n.clrt", "am.clrt")]
    others += [tmp_path / ".m.clrt.backup", tmp_path / f".m.clrt.{'0' * 31}"]
    for other in others:
        other.touch()
    with _writer(path) as process:
        process.kill()
    (left,) = {p for p in tmp_path.iterdir() if p.name.startswith(".m.clrt.")} - {*others}
    assert left.read_bytes() == b"half"
    with atomic_write(path) as stream:
        stream.write(b"new")
    assert path.read_bytes() == b"new"
    assert {*tmp_path.iterdir()} == {path, *others}


def test_temporary_file_of_live_writer_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.clrt"
    with _writer(path) as process:
        with atomic_write(path) as stream:
            stream.write(b"new")
        assert path.read_bytes() == b"new"
        assert len(list(tmp_path.iterdir())) == 2
        process.communicate("\n")
        assert process.returncode == 0
    assert path.read_bytes() == b"half"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_named_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    with atomic_write(pipe, sync=False) as stream:
        stream.write(b"text")
    reader.join()
    assert found == [b"text"]
    assert pipe.is_fifo()


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="no links to open pipes")
def test_unnamed_pipe_is_written_to() -> None:
    reading, writing = os.pipe()
    with atomic_write(Path(f"/dev/fd/{writing}")) as stream:
        stream.write(b"text")
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.read() == b"text"


def test_unwritable_path_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="cannot be written"),
        atomic_write(tmp_path / "no" / "file"),
    ):
        pass


def test_read_only_output_folder_is_refused_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before the work whose result goes there."""

    def refuse(dir: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(InputError, match="cannot be written: Read-only"):
        check_targets({"--output": tmp_path / "file", "--html": None})


def test_check_targets_leaves_no_files(tmp_path: Path) -> None:
    check_targets({"--output": tmp_path / "file", "--trace": tmp_path / "other"}, [tmp_path / "m"])
    assert not list(tmp_path.iterdir())
    check_targets({"--html": Path(os.devnull), "--trace": Path(os.devnull)})


def test_output_aliasing_input_is_refused(tmp_path: Path) -> None:
    """A hard link stands for a path that differs in case on a case-insensitive system."""
    (tmp_path / "m").touch()
    os.link(tmp_path / "m", tmp_path / "M")
    with pytest.raises(InputError, match="/M' belongs to what is read"):
        check_targets({"--output": tmp_path / "M"}, [tmp_path / "m"])


def test_dash_as_file_option_is_refused() -> None:
    with pytest.raises(InputError, match="--html cannot write to standard output; name a file"):
        check_targets({"--html": Path("-")})


def test_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert expanded("~/m.onnx") == expanded(Path("~/m.onnx")) == tmp_path / "m.onnx"
    for path in ("m~.onnx", "a/~/m", "~nobody-of-this-name/m", "~\0"):
        assert expanded(path) == Path(path)


def test_cache_folder_is_private(tmp_path: Path) -> None:
    make_cache_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o077 == 0
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be created: Not a directory"):
        make_cache_folder(tmp_path / "file" / "b")

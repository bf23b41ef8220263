"""Memory that goes back to the system."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from clrt.runtime.pages import drop_code, mapped_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SIZE = 2 << 20


def _mapped(path: Path) -> mmap.mmap:
    """A private mapping of a file of ones, all of it in memory, as the linker makes them."""
    path.write_bytes(b"\1" * SIZE)
    with path.open("rb") as file:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=protection)
    assert np.frombuffer(mapped, np.uint8).all()
    return mapped


def _protect(mapped: mmap.mmap) -> None:
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    change = ctypes.CDLL(None).mprotect
    assert change(ctypes.c_void_p(address), ctypes.c_size_t(SIZE), mmap.PROT_READ) == 0


def _resident_kib(path: Path) -> int:
    _, _, rest = Path("/proc/self/smaps").read_text().partition(f"{path}\n")
    return int(rest.partition("Rss:")[2].split()[0])


def test_drops_what_was_never_written(tmp_path: Path) -> None:
    names = "old", "read", "written"
    old, read, written = (_mapped(tmp_path / name) for name in names)
    known = mapped_files() - {bytes(tmp_path / "read"), bytes(tmp_path / "written")}
    written[5] = 7  # as the linker writes addresses
    for mapped in (old, read, written):
        _protect(mapped)
    before = {name: _resident_kib(tmp_path / name) for name in names}
    assert before["read"] == SIZE >> 10
    drop_code(known)
    after = {name: _resident_kib(tmp_path / name) for name in names}
    assert after == {**before, "read": 0}
    assert written[5] == 7 and written[4] == read[0] == 1


def test_drops_nothing_where_nothing_is_known(tmp_path: Path) -> None:
    mapped = _mapped(tmp_path / "read")
    _protect(mapped)
    drop_code(frozenset())
    assert _resident_kib(tmp_path / "read") == SIZE >> 10

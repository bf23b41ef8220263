"""Stripped libraries keep their loaded segments byte for byte, and load."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import onnx.onnx_cpp2py_export
import pytest

from clrt.freezing.contents import pocl_files
from clrt.freezing.elf import without_symbols

_SHARED = [path for path, _ in pocl_files() if ".so" in path.name]
# One that patchelf made, and one that no tool touched.
_LIBRARIES = [*_SHARED, Path(onnx.onnx_cpp2py_export.__file__)]


def _segments(data: bytes) -> list[tuple[int, ...]]:
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    return [struct.unpack_from("<IIQQQQQQ", data, start + i * size) for i in range(count)]


@pytest.mark.parametrize("path", _LIBRARIES, ids=lambda p: p.name.partition("-")[0])
def test_stripping_symbols_keeps_loaded_segments(path: Path) -> None:
    data = path.read_bytes()
    small = without_symbols(data)
    assert len(small) <= len(data)
    for old, new in zip(_segments(data), _segments(small), strict=True):
        assert old[:2] == new[:2] and old[3:] == new[3:]
        assert (old[2] - new[2]) % 0x1000 == 0
        if new[2] >= 0x1000:  # the first page has the headers, which change
            assert small[new[2] : new[2] + new[5]] == data[old[2] : old[2] + old[5]]


def test_patchelf_library_loads_after_stripping_symbols(tmp_path: Path) -> None:
    (path,) = (p for p in _SHARED if "hwloc" in p.name)
    copy = tmp_path / path.name
    copy.write_bytes(without_symbols(path.read_bytes()))
    assert copy.stat().st_size < path.stat().st_size / 4
    assert ctypes.CDLL(str(copy)).hwloc_get_api_version() > 0


@pytest.mark.parametrize("data", [b"", b"text", b"\x7fELF\x01\x01 of 32 bits"])
def test_non_elf64_data_is_unchanged(data: bytes) -> None:
    assert without_symbols(data) == data

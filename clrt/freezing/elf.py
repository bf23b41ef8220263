"""Removes symbols and debug information from shared libraries (ELF files)."""

from __future__ import annotations

import struct

# A 64-bit little-endian ELF file: its magic number; offsets of the header's fields that are read or
# changed; and a program header: type, flags, offset, virtual and physical address, size in the file
# and in memory, alignment. `_LOAD` is PT_LOAD.
_MAGIC = b"\x7fELF\x02\x01"
_PHOFF, _SHOFF, _PHENTSIZE, _SHNUM = 32, 40, 54, 60
_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOAD = 1


def without_symbols(data: bytes) -> bytes:
    """Removes symbols and debug information from a shared library: all bytes outside of segments.

    `strip` does the same, but breaks libraries modified by `patchelf`, as in wheels ("ELF load
    command address/offset not page-aligned"). Only whole pages are removed, so that offsets stay
    aligned. Section headers, which only linkers and debuggers read, are removed too.

    Args:
        data: Contents of a file.

    Returns:
        The smaller file; `data` itself unless it is a 64-bit little-endian ELF file.
    """
    if not data.startswith(_MAGIC):
        return data
    (start,) = struct.unpack_from("<Q", data, _PHOFF)
    size, count = struct.unpack_from("<HH", data, _PHENTSIZE)
    headers = [start + i * size for i in range(count)]
    segments = [_SEGMENT.unpack_from(data, header) for header in headers]
    page = max((s[7] for s in segments if s[0] == _LOAD), default=1)
    kept = [(0, start + count * size), *((s[2], s[2] + s[5]) for s in segments if s[5])]
    cuts = _cuts(kept, page)
    result = bytearray(data)
    for header, segment in zip(headers, segments, strict=True):
        removed = sum(end - begin for begin, end in cuts if end <= segment[2])
        struct.pack_into("<Q", result, header + 8, segment[2] - removed)
    struct.pack_into("<Q", result, _SHOFF, 0)
    struct.pack_into("<HH", result, _SHNUM, 0, 0)
    del result[max(end for _, end in kept) :]
    for begin, end in reversed(cuts):
        del result[begin:end]
    return bytes(result)


def _cuts(kept: list[tuple[int, int]], page: int) -> list[tuple[int, int]]:
    """Returns the ranges (begin, end) of whole pages that can be cut between kept ranges, in order.

    Args:
        kept: Ranges (begin, end) of a file in bytes, in any order.
        page: Page size in bytes.
    """
    cuts, end = [], 0
    for begin, stop in sorted(kept):
        if begin - end >= page:
            cuts.append((end, end + (begin - end) // page * page))
        end = max(end, stop)
    return cuts

"""Shared libraries without what nobody reads at run time."""

from __future__ import annotations

import struct

# Of a 64-bit little-endian ELF file: the magic number, where its header keeps the numbers that
# change, and a program header: type, flags, offset, addresses, sizes in file and memory, alignment.
_MAGIC = b"\x7fELF\x02\x01"
_PHOFF, _SHOFF, _PHENTSIZE, _SHNUM = 32, 40, 54, 60
_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOAD = 1


def without_symbols(data: bytes) -> bytes:
    """A shared library less the bytes that no segment has: symbols and lines for debuggers.

    `strip` does the same, but breaks libraries that `patchelf` made ("ELF load command
    address/offset not page-aligned"), as wheels have them. Here whole pages go, so that offsets
    stay aligned. Section headers go, too, which only linkers and debuggers read.

    Args:
        data: A file; what is no 64-bit little-endian ELF file comes back as it is.
    """
    if not data.startswith(_MAGIC):
        return data
    (start,) = struct.unpack_from("<Q", data, _PHOFF)
    size, count = struct.unpack_from("<HH", data, _PHENTSIZE)
    places = [start + i * size for i in range(count)]
    segments = [_SEGMENT.unpack_from(data, place) for place in places]
    page = max((s[7] for s in segments if s[0] == _LOAD), default=1)
    kept = [(0, start + count * size), *((s[2], s[2] + s[5]) for s in segments if s[5])]
    cuts = _cuts(kept, page)
    result = bytearray(data)
    for place, segment in zip(places, segments, strict=True):
        gone = sum(end - begin for begin, end in cuts if end <= segment[2])
        struct.pack_into("<Q", result, place + 8, segment[2] - gone)
    struct.pack_into("<Q", result, _SHOFF, 0)
    struct.pack_into("<HH", result, _SHNUM, 0, 0)
    del result[max(end for _, end in kept) :]
    for begin, end in reversed(cuts):
        del result[begin:end]
    return bytes(result)


def _cuts(kept: list[tuple[int, int]], page: int) -> list[tuple[int, int]]:
    """Between the ranges that are kept, the whole pages that can go, in order."""
    cuts, end = [], 0
    for begin, stop in sorted(kept):
        if begin - end >= page:
            cuts.append((end, end + (begin - end) // page * page))
        end = max(end, stop)
    return cuts

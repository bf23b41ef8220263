"""Kernel sources as text with includes expanded, and the axes along which launches can be split."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)
# Functions whose results depend on the whole grid, with their axis; an axis that is not a literal
# digit may be any. The pattern begins with letters, which is 30 times faster than a word boundary.
_GRID_QUERY = re.compile(r"get_(?:group_id|num_groups|global_size|\w*linear_id)\b(?:\(([012])\))?")


@cache
def read_source(name: str) -> str:
    """Reads a kernel source and expands its includes: headers once, templates (.inc) each time.

    Args:
        name: File under kernels_cl.
    """
    return _expand(name, set())


@cache
def splittable_axes(name: str) -> tuple[int, ...]:
    """Returns the axes along which a launch may be split into launches with global offsets.

    `get_global_id` includes the offset. A kernel that queries its group id, the number of groups or
    the global size along an axis would compute other elements.

    Args:
        name: File under kernels_cl; the result holds for all its kernels.
    """
    queried = {match[1] or "" for match in _GRID_QUERY.finditer(read_source(name))}
    return () if "" in queried else tuple(axis for axis in range(3) if str(axis) not in queried)


def _expand(name: str, seen: set[str]) -> str:
    """Returns a kernel source with its includes expanded.

    Args:
        name: File under kernels_cl.
        seen: Files included so far, which are not repeated; updated. Templates (.inc) are never in
            it, so they are included each time.
    """
    if name in seen:
        return ""
    if not name.endswith(".inc"):
        seen.add(name)
    text = files("kernels_cl").joinpath(name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda match: _expand(match[1], seen), text)

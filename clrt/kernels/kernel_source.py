"""Kernel sources as text, includes expanded."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)
# An axis that is no digit, or none, is any. It begins with letters, which are found 30 times faster
# than the edge of a word.
_WHOLE = re.compile(r"get_(?:group_id|num_groups|global_size|\w*linear_id)\b(?:\(([012])\))?")


@cache
def read_source(name: str) -> str:
    """A file under kernels_cl, includes expanded: a header once, a template (.inc) each time."""
    return _expand(name, set())


@cache
def splittable_axes(name: str) -> tuple[int, ...]:
    """The axes along which a launch of a file's kernels may be several, each at an offset.

    `get_global_id` has the offset in it. What asks for its group, for how many there are or for the
    size of the grid would compute other elements.
    """
    asked = {match[1] or "" for match in _WHOLE.finditer(read_source(name))}
    return () if "" in asked else tuple(axis for axis in range(3) if str(axis) not in asked)


def _expand(name: str, seen: set[str]) -> str:
    if name in seen:
        return ""
    if not name.endswith(".inc"):
        seen.add(name)
    text = files("kernels_cl").joinpath(name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda match: _expand(match[1], seen), text)

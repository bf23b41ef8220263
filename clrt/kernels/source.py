"""Kernel sources as text, includes expanded."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)


@cache
def read_source(name: str) -> str:
    """A file under kernels_cl, includes expanded: a header once, a template (.inc) each time."""
    return _expand(name, set())


def _expand(name: str, seen: set[str]) -> str:
    if name in seen:
        return ""
    if not name.endswith(".inc"):
        seen.add(name)
    text = files("kernels_cl").joinpath(name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda match: _expand(match[1], seen), text)

"""Kernel sources as text: includes expanded, defines in front."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from clrt.ir.code import spelled
from clrt.kernels.spec import KernelSpec

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


def render_source(spec: KernelSpec) -> str:
    """The whole program text of a kernel.

    Defines go in front as text, not as -D options, because their values may be code.

    Raises:
        TypeError: A define is not clrt's own code.
    """
    defines = "".join(f"#define {name} {spelled(value)}\n" for name, value in spec.defines)
    return defines + read_source(spec.source)

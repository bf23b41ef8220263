"""OpenCL C source fragments, typed so that no text of a model can enter a kernel.

A program is a kernel file of clrt after macro definitions, whose values are numbers or `Code`. Code
is created only from literals in clrt's own files (tests/unit/ir/test_cl_code.py checks every call),
and from other Code and numbers by `substitute` and `join`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

# Exclusive bound on the magnitude of integers in a kernel's source.
_LIMIT = 1 << 64


class Code(str):
    """A fragment of OpenCL C that clrt itself contains.

    Results of `str` methods and f-strings are plain `str`, which macros do not accept.
    """

    __slots__ = ()

    def substitute(self, *args: Define, **named: Define) -> Code:
        """Replaces the placeholders of this template, as `str.format`, by numbers and Code."""
        pieces = {name: render_define(value) for name, value in named.items()}
        return Code(self.format(*map(render_define, args), **pieces))

    def join(self, parts: Iterable[Code]) -> Code:  # type: ignore[override]
        """Joins code fragments, with this fragment as the separator."""
        return Code(super().join(render_define(p) for p in parts))

    def renamed(self, old: Code, new: Code) -> Code:
        """Returns this fragment with each occurrence of `old` replaced by `new`."""
        return Code(self.replace(render_define(old), render_define(new)))


Define: TypeAlias = "bool | int | float | Code"


def render_define(value: object) -> Code:
    """Returns a macro's value as source text; floats are hexadecimal and so exact.

    Raises:
        TypeError: The value is neither a finite number of at most 64 bits nor `Code`: a bug of
            clrt, by which text of a model could enter a kernel.
    """
    # Called thousands of times per plan: the most frequent types first.
    if type(value) is Code:
        return value
    if isinstance(value, int) and -_LIMIT < value < _LIMIT:
        return _integer(int(value))
    if isinstance(value, float) and math.isfinite(value):
        return Code(float(value).hex())
    raise TypeError(f"no part of a kernel's source: a {type(value).__name__}")


@lru_cache(maxsize=1024)
def _integer(value: int) -> Code:
    return Code(int.__repr__(value))

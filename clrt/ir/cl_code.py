"""Text of OpenCL C, kept apart from all other text so that no model can write any.

A kernel's source is a file of clrt behind defines, and the value of a define is a number or `Code`.
Code is what stands as a literal in clrt's own files (tests/unit/ir/test_cl_code.py reads every
call), and what `fill` and `join` make of such by putting in numbers and other Code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

_LIMIT = 1 << 64


class Code(str):
    """OpenCL C that clrt wrote itself.

    It is a `str`, but what the methods of `str` give, f-strings too, is plain text again, and
    that no define takes.
    """

    __slots__ = ()

    def substitute(self, *args: Define, **named: Define) -> Code:
        """This template, as for `str.format`, with numbers and Code put in."""
        pieces = {name: render_define(value) for name, value in named.items()}
        return Code(self.format(*map(render_define, args), **pieces))

    def join(self, parts: Iterable[Code]) -> Code:  # type: ignore[override]
        """The parts with this in between."""
        return Code(super().join(render_define(p) for p in parts))

    def renamed(self, old: Code, new: Code) -> Code:
        """With `new` wherever `old` stands."""
        return Code(self.replace(render_define(old), render_define(new)))


Define: TypeAlias = "bool | int | float | Code"


def render_define(value: object) -> Code:
    """The one way in which a value stands in a source: floats in hexadecimal, exact to the bit.

    Raises:
        TypeError: It is no finite number of at most 64 bits and no Code: a bug of clrt, which the
            text of a model would have come through.
    """
    # Plans ask a few thousand times: the types that there are most of come first.
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

"""Parts: tensors that are rows of another one, in whose memory they may lie."""

from __future__ import annotations

from dataclasses import dataclass

from clrt.ir.graph import Value


@dataclass(frozen=True, eq=False)
class Subview:
    """A value whose elements are, in their order, rows of another one.

    Attributes:
        value: The part: an input of Concat, an output of Split.
        parent: What it is a part of.
        offset: Elements of the whole before the first row.
        width: Elements of a row.
        pitch: From a row to the next, in elements of the whole.
    """

    value: Value
    parent: Value
    offset: int
    width: int
    pitch: int

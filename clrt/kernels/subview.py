"""Subviews: tensors whose elements are rows of another tensor and that may share its memory."""

from __future__ import annotations

from clrt.ir.graph import Value
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True, eq=False)
class Subview:
    """A value whose elements are, in order, rows of a parent value.

    Attributes:
        value: The subview: an input of Concat, or an output of Split.
        parent: The value that contains the rows: the output of Concat, or the input of Split.
        offset: Offset of the first row in the parent, in elements.
        width: Row width in elements.
        pitch: Distance between the starts of rows in the parent, in elements.
    """

    value: Value
    parent: Value
    offset: int
    width: int
    pitch: int

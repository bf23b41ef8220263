"""Reversible packed layouts, in which compiled models may store weights."""

from __future__ import annotations

from collections.abc import Callable

from clrt.ir.op import Array
from clrt.kernels.gguf_record_layout import GgufRecordLayout, named_records
from clrt.kernels.panel_layout import Panels, named_panels


def restoring(layout: str, shape: tuple[int, ...]) -> Callable[[Array], Array] | None:
    """Returns a function that unpacks an array; None if its packed layout is not reversible.

    Args:
        layout: Name of the layout (`clrt.kernels.spec.PackedWeight.layout`).
        shape: Shape of the unpacked array.
    """
    named = _named(layout)
    return None if named is None else lambda array: named.restore(array, shape)


def packed_shape(layout: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the shape of an array in a packed layout.

    The result is None if the layout is unknown or does not fit `shape`.

    Args:
        layout: Name of the layout (`clrt.kernels.spec.PackedWeight.layout`).
        shape: Shape of the unpacked array.
    """
    named = _named(layout)
    return None if named is None else named.packed_shape(shape)


def _named(layout: str) -> Panels | GgufRecordLayout | None:
    return named_panels(layout) or named_records(layout)

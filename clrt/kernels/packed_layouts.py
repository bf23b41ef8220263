"""The layouts of kernels that have a way back: what compiled models may keep weights in."""

from __future__ import annotations

from collections.abc import Callable

from clrt.ir.op import Array
from clrt.kernels.gguf_record_layout import GgufRecordLayout, named_records
from clrt.kernels.panel_layout import Panels, named_panels


def restoring(layout: str, shape: tuple[int, ...]) -> Callable[[Array], Array] | None:
    """What puts elements of a layout back in order; None where the layout has no way back.

    Args:
        layout: As `clrt.kernels.spec.PackedWeight` has it.
        shape: Of the elements in their order.
    """
    named = _named(layout)
    return None if named is None else lambda array: named.restore(array, shape)


def packed_shape(layout: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of the packed array; None where there is no such layout of it.

    Args:
        layout: As `clrt.kernels.spec.PackedWeight` has it.
        shape: Of the elements in their order.
    """
    named = _named(layout)
    return None if named is None else named.packed_shape(shape)


def _named(layout: str) -> Panels | GgufRecordLayout | None:
    return named_panels(layout) or named_records(layout)

"""How many elements kernels can index: offsets in a tensor are signed integers of 32 bits."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from clrt.errors import ShapeError
from clrt.ir.graph import Value
from clrt.kernels.spec import Buffer, BufferArg, Launch, PackedWeight, Scratch

MAX_ELEMS = 2**31 - 1
"""Largest number of elements of a tensor."""

MARGIN_ELEMS = 1 << 17
"""Upper bound on what a kernel adds to an index before it compares it with the number of elements:
the elements of a work-item (65,536 at most), a vector, the padding of a launch to whole
work-groups."""

WHOLE_RANGE = frozenset(
    (
        *("movement/copy_strided.cl", "movement/gather.cl", "tensor/fill.cl"),
        *("pointwise/elementwise.cl", "pointwise/quantize_linear.cl"),
    )
)
"""Sources whose kernels index tensors of up to MAX_ELEMS elements, as they never pass the end; the
others need MARGIN_ELEMS. `tests/unit/kernels/test_index_range.py` holds them to it."""


def check_index_range(launches: Iterable[Launch]) -> None:
    """Refuses launches whose kernels might compute an offset past 32 bits.

    Raises:
        ShapeError: A tensor has more elements than the kernel can index.
    """
    seen = set()
    for launch in launches:
        near = launch.kernel.source in WHOLE_RANGE
        limit = MAX_ELEMS if near else MAX_ELEMS - MARGIN_ELEMS
        for arg, param in zip(launch.args, launch.kernel.signature.params, strict=True):
            if not isinstance(arg, BufferArg) or (arg.buffer, near) in seen or arg.elems == 0:
                continue
            seen.add((arg.buffer, near))
            elems = _elems(arg.buffer, param.itemsize)
            if elems > limit:
                raise ShapeError(
                    f"a tensor of {elems} elements; the kernel can index {limit}. Use smaller "
                    "inputs."
                )


def _elems(buffer: Buffer, itemsize: int) -> int:
    """The number of elements that a kernel counts in 32 bits."""
    if isinstance(buffer, Value):
        return prod(buffer.dims)
    if isinstance(buffer, Scratch):
        return buffer.elems
    # Kernels count the bytes of weights that are packed as such in 64 bits.
    return buffer.nbytes // itemsize if isinstance(buffer, PackedWeight) and itemsize > 1 else 0

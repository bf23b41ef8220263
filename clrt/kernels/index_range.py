"""Maximum tensor size of kernels, which compute element offsets as 32-bit signed integers."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from clrt.errors import ShapeError
from clrt.ir.graph import Value
from clrt.kernels.spec import Buffer, BufferArg, Launch, PackedWeight, Scratch

MAX_ELEMS = 2**31 - 1
"""Maximum number of elements of a tensor."""

MARGIN_ELEMS = 1 << 17
"""Upper bound, in elements, on the overshoot of an index past the end of a tensor before the kernel
checks it: elements of a work-item (at most 65,536), a vector, padding to whole work-groups."""

WHOLE_RANGE = frozenset(
    (
        *("movement/copy_strided.cl", "movement/gather.cl", "tensor/fill.cl"),
        *("pointwise/elementwise.cl", "pointwise/quantize_linear.cl"),
    )
)
"""Sources whose kernels never compute an index past the end, so that tensors may have MAX_ELEMS
elements; others need MARGIN_ELEMS less. `tests/unit/kernels/test_index_range.py` checks them."""


def check_index_range(launches: Iterable[Launch]) -> None:
    """Checks that no kernel of `launches` can compute an element offset beyond 32 bits.

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
                    f"a tensor has {elems} elements, and the kernel can index {limit}; use "
                    "smaller inputs."
                )


def _elems(buffer: Buffer, itemsize: int) -> int:
    """Returns the number of elements of a buffer; 0 if kernels index the buffer with 64 bits.

    Only packed weights of single bytes are indexed with 64 bits; for status words the result is 0,
    too.

    Args:
        buffer: Buffer that a kernel accesses.
        itemsize: Bytes per element of the kernel's parameter.
    """
    if isinstance(buffer, Value):
        return prod(buffer.dims)
    if isinstance(buffer, Scratch):
        return buffer.elems
    # Kernels index the bytes of byte-packed weights with 64 bits.
    return buffer.nbytes // itemsize if isinstance(buffer, PackedWeight) and itemsize > 1 else 0

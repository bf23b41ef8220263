"""Compares two plans by the work of their launches, regardless of buffer offsets."""

from __future__ import annotations

from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.spec import Arg, Buffer, BufferArg, Launch, PackedWeight, Scratch, StatusWord
from clrt.plan.plan import Plan
from clrt.plan.steps import launches_of
from clrt.util.background import yield_point


def plans_equivalent(left: Plan, right: Plan) -> bool:
    """Returns whether two plans have equal launches in the same order.

    Kernels, sizes, scalar arguments and offsets within buffers must be equal. A buffer of `left`
    must always correspond to the same buffer of `right`, of equal type and shape, and constants
    must have equal elements. The places of buffers in the arena are ignored.
    """
    left_launches, right_launches = launches_of(left.steps), launches_of(right.steps)
    if len(left_launches) != len(right_launches) or len(left.status_words) != len(
        right.status_words
    ):
        return False
    partners: dict[Buffer, Buffer] = {}
    return all(
        _same_launch(a, b, partners) for a, b in zip(left_launches, right_launches, strict=True)
    )


def _same_launch(left: Launch, right: Launch, partners: dict[Buffer, Buffer]) -> bool:
    yield_point()
    if (left.kernel, left.global_size, left.local_size) != (
        right.kernel,
        right.global_size,
        right.local_size,
    ) or len(left.args) != len(right.args):
        return False
    pairs = zip(left.args, right.args, strict=True)
    return all(_same_argument(a, b, partners) for a, b in pairs)


def _same_argument(left: Arg, right: Arg, partners: dict[Buffer, Buffer]) -> bool:
    if not (isinstance(left, BufferArg) and isinstance(right, BufferArg)):
        return type(left) is type(right) and bool(left == right)
    if left.offset != right.offset:
        return False
    return partners.setdefault(left.buffer, right.buffer) is right.buffer and _same_buffer(
        left.buffer, right.buffer
    )


def _same_buffer(left: Buffer, right: Buffer) -> bool:
    if left is right:
        return True
    if isinstance(left, Value) and isinstance(right, Value):
        is_equal = (left.dtype, left.dims, left.is_constant) == (
            right.dtype,
            right.dims,
            right.is_constant,
        )
        return is_equal and (not left.is_constant or _same_elements(left.numbers, right.numbers))
    if isinstance(left, Scratch) and isinstance(right, Scratch):
        return (left.elems, left.dtype) == (right.elems, right.dtype)
    if isinstance(left, PackedWeight) and isinstance(right, PackedWeight):
        is_equal = (left.layout, left.nbytes) == (right.layout, right.nbytes)
        # Each plan holds its own copy of a constant that it folded.
        return is_equal and _same_buffer(left.value, right.value)
    if isinstance(left, StatusWord) and isinstance(right, StatusWord):
        return (left.operand, left.allowed) == (right.operand, right.allowed)
    return False


def _same_elements(left: Array | None, right: Array | None) -> bool:
    if left is None or right is None:
        return left is right
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()

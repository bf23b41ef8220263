"""Whether two plans have a device do the same work, wherever their buffers lie."""

from __future__ import annotations

from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.spec import Arg, Buffer, BufferArg, Launch, PackedWeight, Scratch, StatusWord
from clrt.plan.plan import Plan
from clrt.plan.steps import launches_of


def plans_equivalent(left: Plan, right: Plan) -> bool:
    """Whether the launches of two plans are the same, and what they read of the host."""
    ours, theirs = launches_of(left.steps), launches_of(right.steps)
    if len(ours) != len(theirs) or len(left.statuses) != len(right.statuses):
        return False
    partners: dict[Buffer, Buffer] = {}
    return all(_alike(a, b, partners) for a, b in zip(ours, theirs, strict=True))


def _alike(left: Launch, right: Launch, partners: dict[Buffer, Buffer]) -> bool:
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
        alike = (left.dtype, left.dims, left.is_constant) == (
            right.dtype,
            right.dims,
            right.is_constant,
        )
        return alike and (not left.is_constant or _same_elements(left.numbers, right.numbers))
    if isinstance(left, Scratch) and isinstance(right, Scratch):
        return (left.elems, left.dtype) == (right.elems, right.dtype)
    if isinstance(left, PackedWeight) and isinstance(right, PackedWeight):
        alike = (left.layout, left.nbytes) == (right.layout, right.nbytes)
        # A plan that folds a constant has one of its own.
        return alike and _same_buffer(left.value, right.value)
    if isinstance(left, StatusWord) and isinstance(right, StatusWord):
        return (left.operand, left.allowed) == (right.operand, right.allowed)
    return False


def _same_elements(left: Array | None, right: Array | None) -> bool:
    if left is None or right is None:
        return left is right
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()

"""What ops ask of the types of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from clrt.errors import ModelError, ShapeError, UnsupportedError
from clrt.ir.dim_operations import broadcast, maximum
from clrt.ir.dims import Dim, Shape, provably_different, provably_equal
from clrt.ir.op import Array, IrOp, TensorType
from clrt.ops.base import Types


def need(inputs: Types, index: int, op: IrOp) -> TensorType:
    """An input type that must be there.

    Raises:
        ModelError: It is left out.
    """
    found = inputs[index] if index < len(inputs) else None
    if found is None:
        raise ModelError(f"{op.name} lacks its input {index}; the model is not valid ONNX.")
    return found


def check_scalar(inputs: Types, index: int, op: IrOp, what: str) -> None:
    """Refuses an optional input that has another number of elements than one.

    Raises:
        ShapeError: It has; kernels read its first element.
    """
    found = inputs[index] if index < len(inputs) else None
    if (
        found is not None
        and found.shape is not None
        and any(provably_different(d, 1) for d in found.shape)
    ):
        raise ShapeError(f"{op.name}: {what} is {found}; expected one element.")


def agree(type_: TensorType, shape: Sequence[Dim | None]) -> bool:
    """Whether a tensor may have that shape; None stands for any size."""
    if type_.shape is None:
        return True
    pairs = zip(type_.shape, shape, strict=False)
    return len(type_.shape) == len(shape) and not any(
        b is not None and provably_different(a, b) for a, b in pairs
    )


def known(inputs: Types, index: int, op: IrOp) -> Array | None:
    """The elements of an optional integer input (perhaps symbolic); None where left out.

    Raises:
        UnsupportedError: The input is there but only known when the model runs.
    """
    found = inputs[index] if index < len(inputs) else None
    if found is None:
        return None
    if found.data is None:
        raise UnsupportedError(
            f"{op.name}: input {index} ({found}) is computed while the model runs; "
            "clrt needs it when the plan is made."
        )
    return found.data


def normalize_axis(axis: int, rank: int, op: IrOp) -> int:
    """A non-negative axis.

    Raises:
        ShapeError: The axis is outside the rank.
    """
    if not -rank <= axis < max(rank, 1):
        raise ShapeError(
            f"{op.name}: axis {axis} is outside rank {rank}; expected {-rank}..{rank - 1}."
        )
    return axis % rank if rank else 0


def infer_along_axis(inputs: Types, axis: int, op: IrOp) -> list[TensorType]:
    """The output type of an op that works along an axis of input 0 and keeps its shape.

    Raises:
        ShapeError: The axis is outside the rank.
    """
    x = need(inputs, 0, op)
    if x.shape is not None:
        normalize_axis(axis, len(x.shape), op)
    return [TensorType(x.dtype, x.shape)]


def checked_sizes(dims: Iterable[Dim], trouble: Callable[[], str]) -> Shape:
    """Dims as sizes: symbolic ones are 0 where they would be below, which is refused of numbers.

    Raises:
        ShapeError: One is a number below 0; `trouble` says what that means.
    """
    found = tuple(dims)
    if any(isinstance(d, int) and d < 0 for d in found):
        raise ShapeError(trouble())
    return tuple(maximum(d, 0) for d in found)


def broadcast_shapes(shapes: Sequence[Shape | None], op: IrOp) -> Shape | None:
    """NumPy's broadcasting over dims; None where a rank is unknown.

    Raises:
        ShapeError: Two dims differ and neither is 1.
    """
    if any(s is None for s in shapes):
        return None
    ranked = [s for s in shapes if s is not None]
    rank = max((len(s) for s in ranked), default=0)
    result: list[Dim] = [1] * rank
    for shape in ranked:
        for i, dim in enumerate(shape, start=rank - len(shape)):
            other = result[i]
            if type(other) is int and other == 1:
                result[i] = dim
            elif other is not dim and not (type(dim) is int and dim == 1):
                result[i] = _broadcast_dim(other, dim, shapes, op)
    return tuple(result)


def _broadcast_dim(a: Dim, b: Dim, shapes: Sequence[Shape | None], op: IrOp) -> Dim:
    # What most are, told without arithmetic.
    if provably_equal(a, 1):
        return b
    if provably_equal(a, b) or provably_equal(b, 1):
        return a
    if provably_different(a, b) and provably_different(a, 1) and provably_different(b, 1):
        text = " and ".join(f"[{','.join(map(str, s or ()))}]" for s in shapes)
        raise ShapeError(f"{op.name}: shapes {text} do not broadcast ({a} against {b}).")
    return broadcast(a, b)

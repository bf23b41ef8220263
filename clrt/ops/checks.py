"""Checks of input types and shape inference that many ops share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from clrt.errors import ModelError, ShapeError, UnsupportedError
from clrt.ir.dim_operations import broadcast, maximum
from clrt.ir.dims import Dim, Shape, provably_different, provably_equal
from clrt.ir.op import Array, IrOp, TensorType
from clrt.ops.base import Types


def need(inputs: Types, index: int, op: IrOp) -> TensorType:
    """Returns the type of input `index`, which `op` requires.

    Args:
        inputs: Types of all inputs; None for an omitted one.
        index: Index of the input.
        op: Op, named in the message.

    Raises:
        ModelError: The input is omitted.
    """
    type_ = inputs[index] if index < len(inputs) else None
    if type_ is None:
        raise ModelError(f"{op.name} lacks its input {index}; the model is not valid ONNX.")
    return type_


def check_scalar(inputs: Types, index: int, op: IrOp, what: str) -> None:
    """Checks that an optional input has one element, as kernels read only the first.

    An omitted input, an unknown shape, and symbolic dims that may be 1 pass.

    Args:
        inputs: Types of all inputs; None for an omitted one.
        index: Index of the input to check.
        op: Op, named in the message.
        what: Name of the input for the message.

    Raises:
        ShapeError: A dim of the input cannot be 1.
    """
    type_ = inputs[index] if index < len(inputs) else None
    if (
        type_ is not None
        and type_.shape is not None
        and any(provably_different(d, 1) for d in type_.shape)
    ):
        raise ShapeError(f"{op.name}: {what} is {type_}; expected one element.")


def agree(type_: TensorType, shape: Sequence[Dim | None]) -> bool:
    """Returns whether a tensor of type `type_` may have the shape `shape`.

    The result is True if the rank of the tensor is unknown, or if the ranks are equal and no dim
    provably differs.

    Args:
        type_: Type of the tensor.
        shape: Expected dims; None allows any dim.
    """
    if type_.shape is None:
        return True
    pairs = zip(type_.shape, shape, strict=False)
    return len(type_.shape) == len(shape) and not any(
        b is not None and provably_different(a, b) for a, b in pairs
    )


def known(inputs: Types, index: int, op: IrOp) -> Array | None:
    """Returns the elements of an input that planning needs, such as axes; None if omitted.

    The elements may be symbolic dims.

    Args:
        inputs: Types of all inputs; None for an omitted one.
        index: Index of the input.
        op: Op, named in the message.

    Raises:
        UnsupportedError: The input depends on data that is computed when the model runs.
    """
    type_ = inputs[index] if index < len(inputs) else None
    if type_ is None:
        return None
    if type_.data is None:
        raise UnsupportedError(
            f"{op.name}: input {index} ({type_}) depends on run-time data; planning needs its "
            "value."
        )
    return type_.data


def normalize_axis(axis: int, rank: int, op: IrOp) -> int:
    """Returns `axis`, which may be negative, counted from the front: in 0..rank - 1.

    A scalar (rank 0) has the axis 0.

    Raises:
        ShapeError: The axis is outside -rank..rank - 1.
    """
    if not -rank <= axis < max(rank, 1):
        raise ShapeError(
            f"{op.name}: axis {axis} is outside rank {rank}; expected {-rank}..{rank - 1}."
        )
    return axis % rank if rank else 0


def infer_along_axis(inputs: Types, axis: int, op: IrOp) -> list[TensorType]:
    """Infers the output type of an op along one axis of input 0: dtype and shape of input 0.

    Args:
        inputs: Types of all inputs.
        axis: Axis of input 0; negative axes count from the end.
        op: Op, named in the message.

    Raises:
        ModelError: Input 0 is omitted.
        ShapeError: The axis is outside the rank of input 0.
    """
    x = need(inputs, 0, op)
    if x.shape is not None:
        normalize_axis(axis, len(x.shape), op)
    return [TensorType(x.dtype, x.shape)]


def checked_sizes(dims: Iterable[Dim], trouble: Callable[[], str]) -> Shape:
    """Returns dims as axis sizes; symbolic dims are clamped to at least 0.

    Args:
        dims: Inferred sizes.
        trouble: Returns the error message.

    Raises:
        ShapeError: A dim is a negative number.
    """
    sizes = tuple(dims)
    if any(isinstance(d, int) and d < 0 for d in sizes):
        raise ShapeError(trouble())
    return tuple(maximum(d, 0) for d in sizes)


def broadcast_shapes(shapes: Sequence[Shape | None], op: IrOp) -> Shape | None:
    """Broadcasts shapes by NumPy's rules; returns None if one of them is None (rank unknown).

    Raises:
        ShapeError: Two dims provably differ, and neither can be 1.
    """
    ranked = [s for s in shapes if s is not None]
    if len(ranked) < len(shapes):
        return None
    if len(ranked) == 1:
        return ranked[0]
    rank = max(map(len, ranked), default=0)
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
    # The usual cases, decided without arithmetic on dims.
    if provably_equal(a, 1):
        return b
    if provably_equal(a, b) or provably_equal(b, 1):
        return a
    if provably_different(a, b) and provably_different(a, 1) and provably_different(b, 1):
        text = " and ".join(f"[{','.join(map(str, s or ()))}]" for s in shapes)
        raise ShapeError(f"{op.name}: shapes {text} do not broadcast ({a} against {b}).")
    return broadcast(a, b)

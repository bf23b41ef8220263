"""Helpers of data movement ops: unknown dims, integer inputs as dims, fill launches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Code
from clrt.ir.dims import UNKNOWN, Dim, Expr, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ir.symbolic_trace import is_traced
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, launch
from clrt.kernels.strided import MovePartition
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div

_NUMBERS = itertools.count()


def fresh_dim() -> Expr:
    """Returns an unknown dim: a new symbol, which stands for a size known only later."""
    return symbol(f"{UNKNOWN}{next(_NUMBERS)}")


def fresh_dims(count: int) -> tuple[Dim, ...]:
    """Returns a shape of `count` different unknown dims."""
    return tuple(fresh_dim() for _ in range(count))


def elements(types: Sequence[TensorType | None], index: int) -> list[Dim] | None:
    """Returns the elements of an integer input as dims.

    Returns None if the input is omitted or its elements are unknown.

    Args:
        types: Input types of a node; None for omitted inputs.
        index: Input index.
    """
    data = data_of(types, index)
    if data is None:
        return None
    return [d if isinstance(d, Expr) else _as_python(d) for d in data.flat]


def _as_python(number: Any) -> int:
    """Converts a NumPy number to an int; returns a traced number unchanged."""
    return cast(int, number) if is_traced(number) else int(number)


def data_of(types: Sequence[TensorType | None], index: int) -> Array | None:
    """Returns the elements of input `index`; None if it is omitted or its elements are unknown."""
    type_ = types[index] if index < len(types) else None
    return None if type_ is None else type_.data


def has_input(types: Sequence[TensorType | None], index: int) -> bool:
    """Returns whether input `index` is present among the input types of a node."""
    return index < len(types) and types[index] is not None


def length(types: Sequence[TensorType | None], index: int) -> int | None:
    """Returns the number of elements of a 1-D input.

    Returns None if the input is omitted, not 1-D, or of unknown size.

    Args:
        types: Input types of a node; None for omitted inputs.
        index: Input index.
    """
    type_ = types[index] if index < len(types) else None
    if type_ is None or type_.shape is None or len(type_.shape) != 1:
        return None
    size = type_.shape[0]
    return size if isinstance(size, int) else None


def host(node: Node, index: int) -> Array:
    """Returns the elements of input `index` of a node, for a launch that needs their values.

    Raises:
        UnsupportedError: The elements are computed while the model runs.
    """
    numbers = node.arg(index).numbers
    if numbers is None:
        raise UnsupportedError(
            f"input {index} of {node} depends on run-time data; planning needs its value."
        )
    return numbers


def host_ints(node: Node, index: int) -> tuple[int, ...] | None:
    """Returns the elements of optional integer input `index` of a node; None if it is omitted.

    Raises:
        UnsupportedError: The elements are computed while the model runs.
    """
    if node.input(index) is None:
        return None
    return tuple(map(_as_python, host(node, index).flat))


def num_elements(dims: Sequence[int]) -> int:
    """Returns the number of elements of a static shape: the product of its dims, 1 for a scalar."""
    return math.prod(dims)


def index_t(indices: Value) -> Code:
    """Returns the C element type of a tensor of indices."""
    return indices.dtype.cl


def fill_launch(dst: BufferArg, dtype: DType, elems: int, value: object, ctx: Lowering) -> Launch:
    """Returns the launch that fills a buffer with a number.

    Args:
        dst: Buffer to fill.
        dtype: Dtype of the buffer's elements.
        elems: Number of elements to write.
        value: Number to write.
    """
    pattern = np.asarray(value).astype(dtype.numpy).tobytes()
    bits = int.from_bytes(pattern, "little", signed=True)
    return _fill("fill_bits", dtype, elems, ctx, dst=dst, bits=bits)


def fill_from_launch(
    dst: BufferArg, dtype: DType, elems: int, value: BufferArg, ctx: Lowering
) -> Launch:
    """Returns the launch that fills a buffer with the first element of another buffer.

    Args:
        dst: Buffer to fill.
        dtype: Dtype of the elements of both buffers.
        elems: Number of elements to write.
        value: Buffer whose first element is written.
    """
    return _fill("fill_from", dtype, elems, ctx, dst=dst, value=value)


def _fill(entry: str, dtype: DType, elems: int, ctx: Lowering, **args: Any) -> Launch:
    """Returns the launch of kernel `entry` of tensor/fill.cl, which writes `elems` elements."""
    kernel = KernelSpec.of("tensor/fill.cl", entry, DATA_T=dtype.cl_bits)
    run, local = (ctx.thresholds(MovePartition).filled, (1,)) if ctx.caps.is_cpu else (1, None)
    return launch(kernel, (ceil_div(elems, run),), local, n=elems, run=run, **args)

"""What the ops that only move elements share: integer inputs as dims, fills, index types."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Code
from clrt.ir.dims import UNKNOWN, Dim, Expr, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ir.symbolic_trace import is_traced
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, launch
from clrt.util.math import ceil_div

Promoted: TypeAlias = Mapping[str, tuple[int, Any]]
_NUMBERS = itertools.count()
# Elements that a work-item of a CPU writes: it takes a microsecond.
_FILL_RUN = 4096


def fresh_dim() -> Expr:
    """A dim of which nothing is known before the model runs, or before dims are bound."""
    return symbol(f"{UNKNOWN}{next(_NUMBERS)}")


def fresh_dims(count: int) -> tuple[Dim, ...]:
    """As many unknown dims as asked for."""
    return tuple(fresh_dim() for _ in range(count))


def elements(types: Sequence[TensorType | None], index: int) -> list[Dim] | None:
    """The elements of an integer input as dims; None where it is left out or not known yet."""
    data = data_of(types, index)
    if data is None:
        return None
    return [d if isinstance(d, Expr) else _as_python(d) for d in data.flat]


def _as_python(number: Any) -> int:
    """A number of NumPy or of a trace as one that Python computes with."""
    return cast(int, number) if is_traced(number) else int(number)


def data_of(types: Sequence[TensorType | None], index: int) -> Array | None:
    """The elements of an input; None where it is left out or not known yet."""
    found = types[index] if index < len(types) else None
    return None if found is None else found.data


def given(types: Sequence[TensorType | None], index: int) -> bool:
    """Whether an optional input is there."""
    return index < len(types) and types[index] is not None


def length(types: Sequence[TensorType | None], index: int) -> int | None:
    """How many elements a one-axis input has; None where that is not known."""
    found = types[index] if index < len(types) else None
    if found is None or found.shape is None or len(found.shape) != 1:
        return None
    count = found.shape[0]
    return count if isinstance(count, int) else None


def host(node: Node, index: int) -> Array:
    """The elements of an input that the launch needs as numbers.

    Raises:
        UnsupportedError: They are computed while the model runs.
    """
    numbers = node.arg(index).numbers
    if numbers is None:
        raise UnsupportedError(f"input {index} of {node} is computed while the model runs.")
    return numbers


def host_ints(node: Node, index: int) -> tuple[int, ...] | None:
    """The elements of an optional integer input; None where it is left out."""
    if node.input(index) is None:
        return None
    return tuple(map(_as_python, host(node, index).flat))


def count(dims: Sequence[int]) -> int:
    """How many elements a static shape has."""
    return math.prod(dims)


def index_t(indices: Value) -> Code:
    """The C type of an index tensor."""
    return indices.dtype.cl


def fill_launch(
    dst: BufferArg, dtype: DType, elems: int, value: object, caps: DeviceCaps
) -> Launch:
    """The launch that writes one number to `elems` elements."""
    pattern = np.asarray(value).astype(dtype.numpy).tobytes()
    bits = int.from_bytes(pattern, "little", signed=True)
    return _fill("fill_bits", dtype, elems, caps, dst=dst, bits=bits)


def fill_from_launch(
    dst: BufferArg, dtype: DType, elems: int, value: BufferArg, caps: DeviceCaps
) -> Launch:
    """The launch that writes the first element of a buffer to `elems` elements."""
    return _fill("fill_from", dtype, elems, caps, dst=dst, value=value)


def _fill(entry: str, dtype: DType, elems: int, caps: DeviceCaps, **args: Any) -> Launch:
    kernel = KernelSpec.of("tensor/fill.cl", entry, DATA_T=dtype.cl_bits)
    run, local = (_FILL_RUN, (1,)) if caps.is_cpu else (1, None)
    return launch(kernel, (ceil_div(elems, run),), local, n=elems, run=run, **args)

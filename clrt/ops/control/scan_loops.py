"""Converts a Scan to a Loop whose body slices the scanned tensors by the iteration number."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from clrt.errors import ClrtError
from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.op import TensorType
from clrt.ir.runtime_values import RuntimeValue, Tensor, tensor
from clrt.ops.base import HostContext
from clrt.ops.control.host_driven import dtype_of, infer_known, join, positional, sizes, take
from clrt.ops.movement.common import fresh_dims
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.transpose import Transpose
from clrt.ops.pointwise.table import Sub


def loop_graph(
    body: Graph,
    states: int,
    inputs: Sequence[RuntimeValue],
    axes: Sequence[int],
    backwards: Sequence[int],
    host: HostContext,
) -> Graph | None:
    """Returns the body of a Loop that is equivalent to a Scan, cached per input types.

    Args:
        body: Scan body; inputs are states, slices and captured values.
        states: Number of states.
        inputs: Initial states, scanned tensors and captured values.
        axes: Scan axis of each scanned tensor.
        backwards: Per scanned tensor, 1 to scan from the last slice to the first.
        host: Caches and optimises the graph.

    Returns:
        The graph. Inputs: iteration number, condition, then `inputs`. None if an input is no
        tensor, a shape is unknown, a state changes its shape or dtype, a node needs the host or
        fails, or the host caches nothing.
    """
    notes = host.notes(body)
    if notes is None or any(x is None or isinstance(x, (list, dict)) for x in inputs):
        return None
    types = [TensorType(dtype_of(x), tuple(x.shape)) for x in map(tensor, inputs)]
    key = (tuple(axes), tuple(backwards), *((t.dtype, t.shape) for t in types))
    if key not in notes:
        try:
            notes[key] = _loop_graph(body, states, types, axes, backwards)
            if notes[key] is not None:
                host.optimise(notes[key])
        except ClrtError:  # the iteration may never run; if it does, the run reports the error
            notes[key] = None
    graph: Graph | None = notes[key]
    return graph


def _loop_graph(
    body: Graph,
    states: int,
    types: Sequence[TensorType],
    axes: Sequence[int],
    backwards: Sequence[int],
) -> Graph | None:
    """Builds the Loop body that gathers the slices of an iteration and runs a Scan's body on them.

    Args:
        body: Scan body; inputs are states, slices and captured values.
        states: Number of states.
        types: Types of the initial states, scanned tensors and captured values.
        axes: Scan axis of each scanned tensor.
        backwards: Per scanned tensor, 1 to scan from the last slice to the first.

    Returns:
        The graph; None if a shape is unknown, a node needs the host, or a state changes its shape
        or dtype.
    """
    build, end = Builder(), states + len(axes)
    iteration = build.input("turn", DType.INT64, ())
    going = build.input("going", DType.BOOL, ())
    # Error messages trace numbers back to their source by these input names.
    values = [
        build.input(v.name, t.dtype, t.shape) for v, t in zip(body.inputs, types, strict=True)
    ]
    slices = []
    for x, axis, back in zip(values[states:end], axes, backwards, strict=True):
        index = build.add(Sub(), build.numbers(-1), iteration) if back else iteration
        slices.append(build.add(Gather(axis), x, index))
    formals = [*values[:states], *slices, *values[end:]]
    results = build.inline(body, formals, sizes(body, formals))
    if not all(map(infer_known, build.nodes)):
        return None
    carried = zip(results, values[:states], strict=False)
    if any(a.dims != b.dims or a.dtype is not b.dtype for a, b in carried):
        return None
    return positional(build.graph(body.name, [iteration, going, *values], [going, *results]))


def moved_rows(x: RuntimeValue, axis: int, backwards: int, host: HostContext) -> Tensor:
    """Moves axis 0 of a stack of rows to position `axis`.

    Args:
        x: Stack of rows.
        axis: New position; negative positions count from the end.
        backwards: 1 to reverse the order of the rows first.
        host: Runs the graphs that move the rows.
    """
    rows = tensor(x)
    rank = len(rows.shape)
    if backwards:
        rows = take(rows, 0, range(rows.shape[0] - 1, -1, -1), host)
    if axis % rank == 0:
        return rows
    return tensor(host.run(_move_axis_graph(dtype_of(rows), rank, axis % rank), [rows])[0])


@lru_cache(maxsize=256)
def _move_axis_graph(dtype: DType, rank: int, axis: int) -> Graph:
    """Returns the cached graph that moves axis 0 of a tensor to position `axis`."""
    build = Builder()
    x = build.input("x", dtype, fresh_dims(rank))
    order = (*range(1, axis + 1), 0, *range(axis + 1, rank))
    return build.graph("host", [x], [build.add(Transpose(order), x)])


def padded(x: Tensor, length: int, host: HostContext) -> Tensor:
    """Pads axis 0 of a tensor with zeros at the end up to `length`.

    Returns `x` if it is long enough.
    """
    missing = length - x.shape[0]
    if missing <= 0:
        return x
    return join([x, np.zeros((missing, *x.shape[1:]), dtype_of(x).numpy)], 0, False, host)

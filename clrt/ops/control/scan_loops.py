"""Scan as a Loop whose graph takes the slice of its iteration from each tensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from clrt.errors import ClrtError
from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.op import TensorType
from clrt.ops.base import HostContext, RuntimeValue, Tensor, tensor
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
    """Returns the graph of a Loop that does what a Scan of a graph does.

    Args:
        body: Takes states, slices and what it captures.
        states: Number of states.
        inputs: States, tensors to scan, and what is captured.
        axes: Axis of each tensor that is scanned.
        backwards: For each of them, whether from the last slice on.

    Returns:
        The graph, the same one for the same shapes; None if a shape is unknown or changes from
        iteration to iteration, or nothing is kept between runs.
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
        except ClrtError:  # of an iteration that may never be; the run says so
            notes[key] = None
    found: Graph | None = notes[key]
    return found


def _loop_graph(
    body: Graph,
    states: int,
    types: Sequence[TensorType],
    axes: Sequence[int],
    backwards: Sequence[int],
) -> Graph | None:
    build, end = Builder(), states + len(axes)
    turn = build.input("turn", DType.INT64, ())
    going = build.input("going", DType.BOOL, ())
    # By their names errors find what a number comes from.
    given = [build.input(v.name, t.dtype, t.shape) for v, t in zip(body.inputs, types, strict=True)]
    slices = []
    for x, axis, back in zip(given[states:end], axes, backwards, strict=True):
        place = build.add(Sub(), build.numbers(-1), turn) if back else turn
        slices.append(build.add(Gather(axis), x, place))
    formals = [*given[:states], *slices, *given[end:]]
    results = build.inline(body, formals, sizes(body, formals))
    if not all(map(infer_known, build.nodes)):
        return None
    carried = zip(results, given[:states], strict=False)
    if any(a.dims != b.dims or a.dtype is not b.dtype for a, b in carried):
        return None
    return positional(build.graph(body.name, [turn, going, *given], [going, *results]))


def moved_rows(x: RuntimeValue, axis: int, backwards: int, host: HostContext) -> Tensor:
    """Stacked rows along another axis, or in the opposite order."""
    rows = tensor(x)
    rank = len(rows.shape)
    if backwards:
        rows = take(rows, 0, range(rows.shape[0] - 1, -1, -1), host)
    if axis % rank == 0:
        return rows
    return tensor(host.run(_moved(dtype_of(rows), rank, axis % rank), [rows])[0])


@lru_cache(maxsize=256)
def _moved(dtype: DType, rank: int, axis: int) -> Graph:
    build = Builder()
    x = build.input("x", dtype, fresh_dims(rank))
    order = (*range(1, axis + 1), 0, *range(axis + 1, rank))
    return build.graph("host", [x], [build.add(Transpose(order), x)])


def padded(x: Tensor, length: int, host: HostContext) -> Tensor:
    """x with zeros behind its first axis up to a length."""
    missing = length - x.shape[0]
    if missing <= 0:
        return x
    return join([x, np.zeros((missing, *x.shape[1:]), dtype_of(x).numpy)], 0, False, host)

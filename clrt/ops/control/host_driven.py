"""Base of the ops that the host drives between plans, and the host of the references."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import numpy as np

from clrt.errors import ClrtError, OutOfMemoryError, reworded
from clrt.ir.builder import Builder
from clrt.ir.dims import Dim, Expr, match_symbols, provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, ContainerType, TensorType
from clrt.ops.base import Accuracy, HostContext, Op, RuntimeValue, Tensor, Types, tensor
from clrt.ops.movement.common import fresh_dim, fresh_dims
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.views import Unsqueeze
from clrt.ops.reference_interpreter import evaluate
from clrt.util.host_limits import check_host_bytes, check_iterations, check_texts

# A plan of more launches than this costs more to make than several plans.
_MAX_PARTS = 64


class HostDriven(Op):
    """Base: `drive` says what happens, and `reference` is `drive` with NumPy."""

    host_driven = True
    supported_storages = None
    accuracy = Accuracy.EXACT

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        raise NotImplementedError(self.name)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return cast(tuple[Array, ...], tuple(self.run_host_driven(inputs, NumpyHost())))


class NumpyHost:
    """Runs graphs by the references."""

    def run(self, graph: Graph, inputs: Sequence[RuntimeValue]) -> list[RuntimeValue]:
        """The outputs of a graph."""
        feeds = dict(zip((v.name for v in graph.inputs), inputs, strict=True))
        return list(evaluate(graph, feeds).values())

    def read(self, value: RuntimeValue) -> Array:
        """The elements of a tensor."""
        return np.asarray(value)

    def notes(self, graph: Graph) -> dict[Hashable, Any] | None:
        """Keeps nothing."""
        return None

    def optimise(self, graph: Graph) -> None:
        """Leaves a graph as it is."""


def wider(types: Sequence[TensorType], seen: Types) -> TensorType:
    """The type that holds for values of all these types, as the graph outside sees it.

    A dim stays where it is the same in all and made of what `seen` has; else it is unknown.
    """
    first = types[0]
    if isinstance(first, ContainerType):
        elements = [t.element for t in types if isinstance(t, ContainerType)]
        return replace(first, element=wider(elements, seen))
    if any(t.shape is None or len(t.shape) != len(first.shape or ()) for t in types):
        return TensorType(first.dtype, None)
    symbols = _symbols(seen)
    dims: list[Dim] = []
    for column in zip(*(t.shape or () for t in types), strict=True):
        dim = column[0]
        inside = isinstance(dim, int) or dim.symbols <= symbols
        dims.append(dim if inside and all(provably_equal(d, dim) for d in column) else fresh_dim())
    return TensorType(first.dtype, tuple(dims))


def _symbols(types: Types) -> frozenset[str]:
    dims = [d for t in types if t is not None for d in t.shape or ()]
    return frozenset().union(*(d.symbols for d in dims if isinstance(d, Expr)))


def sizes(graph: Graph, inputs: Sequence[RuntimeValue | Value]) -> dict[str, int]:
    """The numbers of the symbols in the shapes of a graph's inputs."""
    found: dict[str, int] = {}
    for value, x in zip(graph.inputs, inputs, strict=True):
        shape = getattr(x, "shape", None)
        if shape is not None and len(shape) == len(value.shape or ()):
            found |= match_symbols(value.shape or (), shape)
    return found


def join(parts: Sequence[RuntimeValue], axis: int, new_axis: bool, host: HostContext) -> Tensor:
    """Tensors side by side along an axis, which is a new one where asked for."""
    tensors = list(map(tensor, parts))
    ranks = {len(p.shape) for p in tensors}
    dtype, rank = dtype_of(tensors[0]), ranks.pop()
    if dtype is DType.STRING:
        stack = np.stack if new_axis else np.concatenate
        arrays = [np.asarray(p) for p in tensors]
        check_texts(sum(a.size for a in arrays), max(a.itemsize for a in arrays) // 4)
        return stack(arrays, axis)
    while True:
        groups = [tensors[i : i + _MAX_PARTS] for i in range(0, len(tensors), _MAX_PARTS)]
        graphs = [_joined(len(g), dtype, rank, axis, new_axis) for g in groups]
        tensors = [tensor(host.run(graph, g)[0]) for graph, g in zip(graphs, groups, strict=True)]
        if len(tensors) == 1:
            return tensors[0]
        rank += new_axis
        new_axis = False


def take(x: Tensor, axis: int, indices: int | range, host: HostContext) -> Tensor:
    """Some indices of an axis, or just one, with which the axis goes.

    They are no part of the plan, which so serves others as well. What is on the host stays there: a
    plan would take all of it to the device.
    """
    places = np.array(indices, np.int64)
    if isinstance(x, np.ndarray):
        return np.take(x, places, axis)
    graph = _taken(dtype_of(x), len(x.shape), axis, places.ndim)
    return tensor(host.run(graph, [x, places])[0])


class Iterations:
    """Makes the iterations of a loop, and bounds what they leave behind.

    Args:
        op: The name of the op whose iterations they are.
        wanted: How many there will be; None where that is not known.

    Attributes:
        count: Those made so far.
        rows: What each gave to be stacked, or several at once, as stacks.
        sizes: By row the number of iterations that made it at once; 0 for one alone.

    Raises:
        InputError: They are more than a run may make.
    """

    def __init__(self, op: str, wanted: int | None) -> None:
        self.count = 0
        self.rows: list[Sequence[RuntimeValue]] = []
        self.sizes: list[int] = []
        self._op = op
        self._nbytes = 0
        self._due = 1
        self._last = 0
        if wanted is not None:
            check_iterations(wanted, op)

    def run(
        self,
        graph: Graph,
        inputs: Sequence[RuntimeValue],
        states: int,
        host: HostContext,
        several: int = 0,
    ) -> list[RuntimeValue]:
        """The outputs of the next iteration; those behind the first `states` are kept as its row.

        Args:
            several: Number of iterations that the graph makes; 0 if it is the body of one.

        Raises:
            OutOfMemoryError: There is no room for it, or it leaves behind more than may be.
        """
        try:
            results = host.run(graph, inputs)
        except OutOfMemoryError as error:
            kept = (
                f"{self.count} iterations before it keep {self._nbytes / 2**20:,.1f} MiB of results"
            )
            raise reworded(error, f"{error} The {kept}.") from error
        self.count += several or 1
        self._last = several
        if len(results) > states:
            self.rows.append(results[states:])
            self.sizes.append(several)
            self._nbytes += sum(map(held_bytes, results[states:]))
        lists = [x for x in results[:states] if isinstance(x, list)]
        items, held = sum(map(len, lists)), 0
        if items >= self._due:  # what goes on growing is added up as often as it doubles
            self._due, held = 2 * items, sum(map(held_bytes, lists))
        check_host_bytes(self._nbytes + held, f"{self._op}: what {self.count} iterations keep")
        return results

    def keep(self, count: int, shorten: Callable[[Tensor], RuntimeValue]) -> None:
        """Keeps so many of the iterations that were made at once last, and of their rows."""
        self.count -= self._last - count
        if self.rows and count < self.sizes[-1]:
            self.rows[-1] = [shorten(tensor(x)) for x in self.rows[-1]]


def held_bytes(x: RuntimeValue) -> int:
    """What a value between stages takes, wherever it lies."""
    if isinstance(x, list):
        return sum(map(held_bytes, x))
    return int(getattr(x, "nbytes", 0))


def dtype_of(x: Tensor) -> DType:
    """The dtype of a tensor, wherever it lies."""
    return DType.of(x.dtype) if isinstance(x, np.ndarray) else x.dtype


# The graphs are kept so that their plans are: a plan belongs to its graph.


@lru_cache(maxsize=256)
def _joined(count: int, dtype: DType, rank: int, axis: int, new_axis: bool) -> Graph:
    build = Builder()
    inputs = [build.input(f"x{i}", dtype, fresh_dims(rank)) for i in range(count)]
    parts = inputs
    if new_axis:
        parts = [build.add(Unsqueeze(), x, build.ints(axis % (rank + 1))) for x in inputs]
    return build.graph("host", inputs, [build.add(Concat(axis), *parts)])


@lru_cache(maxsize=256)
def _taken(dtype: DType, rank: int, axis: int, indices_rank: int) -> Graph:
    build = Builder()
    x = build.input("x", dtype, fresh_dims(rank))
    indices = build.input("indices", DType.INT64, fresh_dims(indices_rank))
    return build.graph("host", [x, indices], [build.add(Gather(axis), x, indices)])


def truth(value: RuntimeValue, host: HostContext) -> bool:
    """A condition."""
    return bool(np.all(host.read(value)))


def infer_known(node: Node) -> bool:
    """Gives the outputs of a node their types; False where the host has a part in it."""
    op = node.op
    assert isinstance(op, Op)
    values = [v for v in node.inputs if v is not None]
    read = (node.input(i) for i in op.plan_time_inputs)
    if op.host_driven or op.graphs or any(v.type.on_host for v in (*values, *node.outputs)):
        return False
    if any(v is not None and not v.has_numbers for v in read):
        return False
    if any(v.is_constant and not v.has_numbers for v in values):
        return False
    try:
        types = op.infer_with_data(node.input_types)
    except ClrtError:  # of an iteration that may never be; the run says so
        return False
    for value, type_ in zip(node.outputs, types, strict=False):
        value.type = type_
    return all(t.is_static for t in types)


def positional(graph: Graph) -> Graph:
    """The graph with numbers for the names of its outputs, which then differ."""
    graph.output_names = [str(i) for i in range(len(graph.outputs))]
    return graph

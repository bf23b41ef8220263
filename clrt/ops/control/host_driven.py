"""Base class of host-driven ops, and a host that runs references."""

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
from clrt.ir.runtime_values import RuntimeValue, Tensor, tensor
from clrt.ops.base import Accuracy, HostContext, Op, Types
from clrt.ops.movement.common import fresh_dim, fresh_dims
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.views import Unsqueeze
from clrt.ops.reference_interpreter import evaluate
from clrt.ops.traits import HostTraits
from clrt.util.host_limits import check_host_bytes, check_iterations, check_texts

# Maximum inputs of one Concat: planning larger ones costs more than planning several.
_MAX_PARTS = 64


class HostDriven(Op):
    """Base class of ops that the host runs between plans, by `run_host_driven`.

    The NumPy reference of these ops calls `run_host_driven`, too, with `NumpyHost`.
    """

    host_traits = HostTraits(host_driven=True)
    supported_storages = None
    accuracy = Accuracy.EXACT

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        raise NotImplementedError(self.name)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return cast(tuple[Array, ...], tuple(self.run_host_driven(inputs, NumpyHost())))


class NumpyHost:
    """HostContext that runs subgraphs by the NumPy references of their ops, without a device."""

    def run(self, graph: Graph, inputs: Sequence[RuntimeValue]) -> list[RuntimeValue]:
        """Returns the outputs of a graph for its inputs."""
        feeds = dict(zip((v.name for v in graph.inputs), inputs, strict=True))
        return list(evaluate(graph, feeds).values())

    def read(self, value: RuntimeValue) -> Array:
        """Returns the elements of a tensor as a NumPy array."""
        return np.asarray(value)

    def notes(self, graph: Graph) -> dict[Hashable, Any] | None:
        """Returns None, because this host caches nothing for a graph."""
        return None

    def optimise(self, graph: Graph) -> None:
        """Does nothing: NumPy references run the graph as it is."""


def common_type(types: Sequence[TensorType], seen: Types) -> TensorType:
    """Returns the type that covers all `types`.

    A dim is kept if it is equal in all types and uses only symbols in the dims of `seen`; else it
    is unknown. The rank is unknown if it differs.

    Args:
        types: Types of equal kind and dtype; at least one.
        seen: Types whose symbols the result may use.
    """
    first = types[0]
    if isinstance(first, ContainerType):
        elements = [t.element for t in types if isinstance(t, ContainerType)]
        return replace(first, element=common_type(elements, seen))
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
    """Returns the names of all symbols in the dims of `types`."""
    dims = [d for t in types if t is not None for d in t.shape or ()]
    return frozenset().union(*(d.symbols for d in dims if isinstance(d, Expr)))


def sizes(graph: Graph, inputs: Sequence[RuntimeValue | Value]) -> dict[str, int]:
    """Returns the symbol values that follow from matching a graph's input shapes to actual inputs.

    Args:
        graph: Graph with symbolic input shapes.
        inputs: Actual inputs, or values of another graph; inputs without shape, such as None and
            lists, are ignored.
    """
    bindings: dict[str, int] = {}
    for value, x in zip(graph.inputs, inputs, strict=True):
        shape = getattr(x, "shape", None)
        if shape is not None and len(shape) == len(value.shape or ()):
            bindings |= match_symbols(value.shape or (), shape)
    return bindings


def join(parts: Sequence[RuntimeValue], axis: int, new_axis: bool, host: HostContext) -> Tensor:
    """Concatenates tensors along an axis, or stacks them along a new one.

    Strings are joined on the host, other tensors by a plan.

    Args:
        parts: Tensors of equal dtype and rank; at least one.
        axis: Axis of the result.
        new_axis: Whether to stack along a new axis.
        host: Runs the graph that joins the tensors.
    """
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
        graphs = [_join_graph(len(g), dtype, rank, axis, new_axis) for g in groups]
        tensors = [tensor(host.run(graph, g)[0]) for graph, g in zip(graphs, groups, strict=True)]
        if len(tensors) == 1:
            return tensors[0]
        rank += new_axis
        new_axis = False


def take(x: Tensor, axis: int, indices: int | range, host: HostContext) -> Tensor:
    """Returns the elements of `x` at `indices` along an axis; an int removes the axis.

    Device tensors are gathered by a plan whose inputs include the indices, so one plan serves all
    indices. Host arrays stay on the host: a plan would upload all of `x`.
    """
    places = np.array(indices, np.int64)
    if isinstance(x, np.ndarray):
        return np.take(x, places, axis)
    graph = _take_graph(dtype_of(x), len(x.shape), axis, places.ndim)
    return tensor(host.run(graph, [x, places])[0])


class Iterations:
    """Runs the iterations of a Loop or Scan; limits their number and the memory of their results.

    Args:
        op: Name of the op, for error messages.
        wanted: Number of iterations; None if unknown.

    Attributes:
        count: Number of iterations run so far.
        rows: Results to stack, one entry per call of `run`: rows of one iteration, or stacks of the
            rows of several iterations.
        sizes: For each entry of `rows`, the number of iterations in its stacks; 0 for the rows of
            one iteration.

    Raises:
        InputError: `wanted` exceeds the number of iterations that a run may have.
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
        """Runs a graph of one or several iterations, and appends its results to `rows`.

        The first `states` results are not appended.

        Args:
            graph: Loop body, or graph of several iterations.
            inputs: Inputs of `graph`.
            states: Number of leading results that are not rows: condition and states.
            host: Runs the graph.
            several: Number of iterations that `graph` computes, if its results are stacks of rows;
                0 if it is a loop body, whose results are single rows.

        Returns:
            All results of the graph.

        Raises:
            OutOfMemoryError: Device memory does not suffice, or the kept results exceed the limit.
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
            self._nbytes += sum(map(nbytes_of, results[states:]))
        lists = [x for x in results[:states] if isinstance(x, list)]
        items, held = sum(map(len, lists)), 0
        if items >= self._due:  # doubling bounds the total time to measure growing lists
            self._due, held = 2 * items, sum(map(nbytes_of, lists))
        check_host_bytes(self._nbytes + held, f"{self._op}: what {self.count} iterations keep")
        return results

    def keep(self, count: int, shorten: Callable[[Tensor], RuntimeValue]) -> None:
        """Drops all but the first `count` iterations of the last call of `run`, which ran several.

        Args:
            count: Number of iterations to keep.
            shorten: Returns the first `count` rows of a stack.
        """
        self.count -= self._last - count
        if self.rows and count < self.sizes[-1]:
            self.rows[-1] = [shorten(tensor(x)) for x in self.rows[-1]]


def nbytes_of(x: RuntimeValue) -> int:
    """Returns the size of a value in bytes, on host or device; 0 for None and maps.

    The size of a list is the sum over its elements.
    """
    if isinstance(x, list):
        return sum(map(nbytes_of, x))
    return int(getattr(x, "nbytes", 0))


def dtype_of(x: Tensor) -> DType:
    """Returns the dtype of a tensor on host or device."""
    return DType.of(x.dtype) if isinstance(x, np.ndarray) else x.dtype


# The graphs below are cached, because plans are cached per graph object.


@lru_cache(maxsize=256)
def _join_graph(count: int, dtype: DType, rank: int, axis: int, new_axis: bool) -> Graph:
    """Returns the cached graph that joins `count` tensors of a dtype and rank along `axis`.

    The graph stacks them along a new axis if `new_axis` is true, else it concatenates them.
    """
    build = Builder()
    inputs = [build.input(f"x{i}", dtype, fresh_dims(rank)) for i in range(count)]
    parts = inputs
    if new_axis:
        parts = [build.add(Unsqueeze(), x, build.ints(axis % (rank + 1))) for x in inputs]
    return build.graph("host", inputs, [build.add(Concat(axis), *parts)])


@lru_cache(maxsize=256)
def _take_graph(dtype: DType, rank: int, axis: int, indices_rank: int) -> Graph:
    """Returns the cached graph that gathers elements along an axis: inputs x and int64 indices.

    Args:
        dtype: Dtype of x.
        rank: Rank of x.
        axis: Axis of x to gather along.
        indices_rank: Rank of the indices: 0 removes the axis, 1 keeps it.
    """
    build = Builder()
    x = build.input("x", dtype, fresh_dims(rank))
    indices = build.input("indices", DType.INT64, fresh_dims(indices_rank))
    return build.graph("host", [x, indices], [build.add(Gather(axis), x, indices)])


def read_condition(value: RuntimeValue, host: HostContext) -> bool:
    """Reads a condition from host or device; returns whether all its elements are true."""
    return bool(np.all(host.read(value)))


def infer_known(node: Node) -> bool:
    """Infers and sets the output types of a node.

    Returns:
        Whether all output shapes are static and the node can run on the device, without numbers
        that are unknown at plan time. If False, output types may be unset.
    """
    op = node.op_as(Op)
    values = [v for v in node.inputs if v is not None]
    plan_time = (node.input(i) for i in op.input_traits.plan_time)
    if (
        op.host_traits.host_driven
        or op.graphs
        or any(v.type.on_host for v in (*values, *node.outputs))
    ):
        return False
    if any(v is not None and not v.has_numbers for v in plan_time):
        return False
    if any(v.is_constant and not v.has_numbers for v in values):
        return False
    try:
        types = op.infer_with_data(node.input_types)
    except ClrtError:  # the iteration may never run; if it does, the run reports the error
        return False
    for value, type_ in zip(node.outputs, types, strict=False):
        value.type = type_
    return all(t.is_static for t in types)


def positional(graph: Graph) -> Graph:
    """Renames a graph's outputs to "0", "1", …, so that names are unique; returns the graph."""
    graph.output_names = [str(i) for i in range(len(graph.outputs))]
    return graph

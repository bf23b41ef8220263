"""Runs several iterations of a Loop as one graph.

Running the body alone costs the host some 200 us per iteration. In a graph of several iterations,
each costs only its launches, and elementwise ops fuse across iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from clrt.errors import ClrtError, OutOfMemoryError
from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import ContainerType, TensorType
from clrt.ir.runtime_values import RuntimeValue
from clrt.ops.base import HostContext, Op
from clrt.ops.control.host_driven import (
    Iterations,
    dtype_of,
    infer_known,
    join,
    sizes,
    take,
)
from clrt.ops.control.kernel_loop import KernelLoop, LoopBody, static_body
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.views import Reshape, Unsqueeze
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.table import Add, And, Where
from clrt.ops.reduce.reduce import ReduceSum
from clrt.util.host_limits import check_iterations

if TYPE_CHECKING:
    from clrt.ops.control.control_flow import Loop

_FIRST_ITERATIONS = 8  # iterations run one by one before graphs of several iterations are built
# Maximum nodes of a graph of several iterations: planning a node takes about 0.2 ms.
_MAX_NODES = 2048
# Maximum bytes of the outputs of a graph of several iterations, which are allocated together.
_MAX_OUTPUT_BYTES = 64 << 20
# Limits of an iteration that may run in surplus, past the end of the loop: it takes less than the
# 200 us that the host needs to run one iteration by itself.
_MAX_SURPLUS_FLOPS = 1 << 22
_MAX_SURPLUS_BYTES = 1 << 20
_MIN_ROWS = 64  # minimum capacity of a kernel loop's stacks, in rows
# Number of runs with equal iteration counts after which a loop starts with its largest graph.
_MIN_SAME_RUNS = 3


class RepeatedBodies:
    """Builds and caches graphs that run several iterations of a Loop at once.

    An instance serves one set of input types. If the loop's condition is computed, a graph may run
    past the end of the loop: surplus iterations then pass states through unchanged, and the rows
    that they stack are dropped.
    """

    def __init__(self, loop: Loop, types: Sequence[TensorType]) -> None:
        self._loop, self._types = loop, types
        self._graphs = dict[int, Graph | None]()
        self._kernel: LoopBody | None = None
        self._checked_kernel = False
        self._last_count = self._same_runs = 0
        nodes = len(loop.body.nodes) + (0 if loop.goes_on else 2 + loop.carried)
        self._max_count = _MAX_NODES // max(nodes, 1)
        self._can_repeat = all(map(self._repeats, loop.body.nodes))

    @classmethod
    def of(
        cls, loop: Loop, values: Sequence[RuntimeValue], host: HostContext
    ) -> RepeatedBodies | None:
        """Returns the instance for a Loop and the types of its values, from the host's cache.

        Creates the instance if the cache has none.

        Args:
            loop: Loop op.
            values: Initial states, then captured values.
            host: Provides the cache.

        Returns:
            The instance; None if the host caches nothing for the body, or a value is no tensor, is
            of a type kept on the host, or has another dtype than the body declares.
        """
        notes = host.notes(loop.body)
        formals = loop.body.inputs[2:]
        if notes is None or any(
            isinstance(v.type, ContainerType) or v.type.on_host for v in formals
        ):
            return None
        if any(x is None or isinstance(x, (list, dict)) for x in values):
            return None
        types = [TensorType(dtype_of(x), tuple(x.shape)) for x in values]  # type: ignore[arg-type, union-attr]
        if any(t.dtype is not v.dtype for t, v in zip(types, formals, strict=True)):
            return None
        key = tuple((t.dtype, t.shape) for t in types)
        if key not in notes:
            notes[key] = cls(loop, types)
        instance: RepeatedBodies = notes[key]
        return instance

    def _repeats(self, node: Node) -> bool:
        """Returns whether a body node may be part of a graph of several iterations.

        Random nodes are excluded. If the graph may run past the loop's end, so are nodes with
        computed indices: an index could be out of range after the end.
        """
        op = node.op_as(Op)
        if op.is_random(node.input_types):
            return False
        indices = [node.input(i) for i in op.input_traits.index]
        return self._loop.goes_on or all(v is None or v.is_constant for v in indices)

    def run(
        self,
        iterations: Iterations,
        carried: Sequence[RuntimeValue],
        captured: Sequence[RuntimeValue],
        remaining: int | None,
        host: HostContext,
    ) -> tuple[list[RuntimeValue], bool] | None:
        """Runs several iterations at once.

        Args:
            iterations: Iterations run so far; updated.
            carried: Loop-carried values at the start of the next iteration.
            captured: Values captured by the body.
            remaining: Maximum number of iterations left; None if unlimited.
            host: Runs the graph.

        Returns:
            The loop-carried values after these iterations, and whether the condition still holds.
            None, with nothing run, if the next iteration has to run alone.

        Raises:
            OutOfMemoryError: The iterations ran, but keep more results than allowed.
        """
        if iterations.count >= _FIRST_ITERATIONS and not self._checked_kernel:
            self._find_kernel(host)
        count = self._size(iterations.count, remaining)
        types = [TensorType(dtype_of(x), tuple(x.shape)) for x in carried]  # type: ignore[arg-type, union-attr]
        if count < 2 or any(a.shape != b.shape for a, b in zip(types, self._types, strict=False)):
            return None
        if count not in self._graphs:
            kernel = self._kernel
            build_graph = (
                self._build_unrolled if kernel is None else partial(self._build_kernel_loop, kernel)
            )
            self._graphs[count] = build_graph(count, host)
        graph = self._graphs[count]
        if graph is None or sum(v.nbytes for v in graph.outputs) > _MAX_OUTPUT_BYTES:
            self._max_count = count // 2
            return None
        limit = count if remaining is None else min(count, remaining)
        check_iterations(iterations.count + limit, self._loop.name)
        states = self._loop.carried
        counted = self._kernel is not None or not self._loop.goes_on
        first = np.asarray(iterations.count, np.int64)
        inputs = [first, *carried, *captured]
        if counted:
            inputs.append(np.asarray(True) if self._kernel is None else np.asarray(limit, np.int64))
        before = iterations.count
        try:
            results = iterations.run(graph, inputs, states + counted, host, count)
        except OutOfMemoryError:
            if iterations.count > before:
                raise
            self._max_count = count // 2
            return None
        if not counted:
            return results[:states], True
        conditions_held = int(host.read(results[states]).reshape(()))
        valid = min(conditions_held, limit)
        iterations.keep(valid, lambda x: take(x, 0, range(valid), host))
        return results[:states], conditions_held > limit

    def _size(self, count: int, remaining: int | None) -> int:
        """Returns the number of iterations to run at once.

        Args:
            count: Number of iterations run so far.
            remaining: Maximum number of iterations left; None if unlimited.

        Returns:
            The number; below 2 if the next iteration has to run alone.
        """
        if self._max_count < 2 or (not self._graphs and count < _FIRST_ITERATIONS):
            return 0
        largest = self._max_count if remaining is None else min(self._max_count, remaining)
        if self._kernel is not None and len(self._loop.body.outputs) == 1 + self._loop.carried:
            return self._max_count
        if self._kernel is None and not self._can_repeat:
            return 0
        if count == 0 and self._last_count == largest and self._same_runs >= _MIN_SAME_RUNS:
            return largest
        grown = max([_FIRST_ITERATIONS, *(2 * k for k, g in self._graphs.items() if g is not None)])
        if self._kernel is not None:  # no surplus iterations run; spare rows only cost memory
            wanted = max(_MIN_ROWS, min(largest, max(self._last_count - count, count)))
            return min(1 << (wanted - 1).bit_length(), self._max_count)
        largest = min(largest, grown)
        if self._loop.goes_on:
            return 1 << largest.bit_length() - 1 if largest else 0
        rest = (
            self._last_count - count if self._last_count > count else max(count, _FIRST_ITERATIONS)
        )
        return min(1 << (rest - 1).bit_length(), 1 << largest.bit_length() - 1) if largest else 0

    def ended(self, count: int) -> None:
        """Records the iteration count of a finished run, to predict that of the loop's next run."""
        self._same_runs = self._same_runs + 1 if count == self._last_count else 0
        self._last_count = count

    def _find_kernel(self, host: HostContext) -> None:
        """Sets `_kernel` if the body can run in a KernelLoop, one launch for many iterations.

        If `_kernel` is set, `_max_count` becomes the maximum number of iterations per launch.
        """
        self._checked_kernel = True
        try:
            body = static_body(self._loop.body, self._types)
            if body is not None:
                host.optimise(body)
                self._kernel = LoopBody.of(body, self._loop.carried, self._loop.goes_on)
        except ClrtError:  # the iteration may never run; if it does, the run reports the error
            return
        if self._kernel is not None:
            self._max_count = self._kernel.most

    def _build_kernel_loop(self, body: LoopBody, count: int, host: HostContext) -> Graph:
        """Builds and optimises a graph that runs at most `count` iterations in one launch.

        Args:
            body: Loop body for kernels.
            count: Maximum number of iterations.
            host: Optimises the graph.

        Returns:
            The graph. Inputs: number of the first iteration, states, captured values, maximum
            number of iterations. Outputs: states; number of conditions that held, including the
            initial one; stacks of rows.
        """
        build, states = Builder(), self._loop.carried
        first = build.input("iteration", DType.INT64, ())
        given = self._inputs(build)
        limit = build.input("limit", DType.INT64, ())
        stacks = len(self._loop.body.outputs) - 1 - states
        op = KernelLoop(body.graph, states, (), (False,) * stacks, count, self._loop.goes_on)
        held, *results = build.add_all(op, first, limit, *given, *body.constants)
        outputs = [*results[:states], held, *results[states:]]
        names = [str(k) for k in range(len(outputs))]
        graph = build.graph("loop", [first, *given, limit], outputs, names)
        host.optimise(graph)
        return graph

    def _inputs(self, build: Builder) -> list[Value]:
        """Adds and returns graph inputs for states and captured values.

        The inputs are named as in the loop body, for error messages.
        """
        pairs = zip(self._loop.body.inputs[2:], self._types, strict=True)
        return [build.input(v.name, t.dtype, t.shape) for v, t in pairs]

    def _build_unrolled(self, count: int, host: HostContext) -> Graph | None:
        """Builds and optimises a graph of `count` copies of the loop body.

        Inputs of the graph: number of the first iteration; states; captured values; if the loop's
        condition is computed, the initial condition (True). Outputs: states; if the condition is
        computed, the number of conditions that held, including the initial one; for each scan
        output, the rows of all iterations, stacked.

        Args:
            count: Number of copies.
            host: Optimises the graph.

        Returns:
            The graph. None if a shape is not static, a state changes its type, or a node needs the
            host or fails. Also None if the condition is computed and an iteration costs too much
            to run in surplus, past the loop's end.
        """
        loop, build = self._loop, Builder()
        states, goes_on = loop.carried, loop.goes_on
        first = build.input("iteration", DType.INT64, ())
        given = self._inputs(build)
        carried, captured = given[:states], given[states:]
        rows: list[list[Value]] = []
        # The true condition is an input, so that all iterations have the same form.
        going = build.input("going", DType.BOOL, ())
        ends = [] if goes_on else [going]
        try:
            for turn in range(count):
                at = build.add(Add(), first, build.numbers(turn))
                results = self._copy(build, turn, [at, *carried, *captured])
                if results is None or not (goes_on or turn or self._is_light(build.nodes)):
                    return None
                after, rest = results[1 : 1 + states], results[1 + states :]
                if not goes_on:
                    pairs = zip(after, carried, strict=False)
                    after = [build.add(Where(), going, a, b) for a, b in pairs]
                    more = build.add(Reshape(), results[0], build.numbers(np.zeros(0, np.int64)))
                    going = build.add(And(), going, more)
                    ends.append(going)
                carried = after
                rows.append(rest)
            outputs = list(carried)
            if ends:
                flags = [build.add(Unsqueeze(), v, build.ints(0)) for v in ends]
                wide = build.add(Cast(DType.INT32), build.add(Concat(0), *flags))
                outputs.append(build.add(ReduceSum(False), wide, build.ints(0)))
            for column in zip(*rows, strict=True):
                parts = [build.add(Unsqueeze(), v, build.ints(0)) for v in column]
                outputs.append(build.add(Concat(0), *parts))
            names = [str(k) for k in range(len(outputs))]
            inputs = [first, *given, *ends[:1]]
            graph = build.graph("loop", inputs, outputs, names)
            host.optimise(graph)
        except ClrtError:  # the iteration may never run; if it does, the run reports the error
            return None
        return graph

    def _is_light(self, nodes: Sequence[Node]) -> bool:
        """Returns whether an iteration is cheap enough to be computed in vain after the loop's end.

        Args:
            nodes: Nodes of one iteration.
        """
        outputs = [v for n in nodes for v in n.outputs]
        flops = sum(n.op.flops(n.input_types, [v.type for v in n.outputs]) for n in nodes)
        return flops <= _MAX_SURPLUS_FLOPS and sum(v.nbytes for v in outputs) <= _MAX_SURPLUS_BYTES

    def _copy(self, build: Builder, iteration: int, args: Sequence[Value]) -> list[Value] | None:
        """Adds a copy of the loop body to a graph.

        Args:
            build: Builder of the graph.
            iteration: Index of the copy, for names.
            args: Iteration number, states, captured values.

        Returns:
            The outputs of the copy; None if a shape stays unknown, a state changes its type, or the
            host is needed.
        """
        body = self._loop.body
        at, *others = args
        numbers = [at, build.numbers(True, DType.BOOL)]
        for k, formal in enumerate(body.inputs[:2]):
            if formal.shape:
                numbers[k] = build.add(
                    Unsqueeze(), numbers[k], build.ints(*range(len(formal.shape)))
                )
        inputs = [*numbers, *others]
        before = len(build.nodes)
        results = build.inline(body, inputs, sizes(body, inputs))
        for node in build.nodes[before:]:
            node.name = f"{node.name}[{iteration}]"
            if not infer_known(node):
                return None
            for value in node.outputs:
                value.name = f"{value.name}[{iteration}]"
        carried = zip(results[1:], others[: self._loop.carried], strict=False)
        same = all(
            a.type.static_shape == b.type.static_shape and a.dtype is b.dtype for a, b in carried
        )
        known = all(v.type.is_static and not v.type.on_host for v in results)
        return results if same and known else None


def stacked_rows(iterations: Iterations, host: HostContext) -> list[RuntimeValue]:
    """Returns the stacked outputs of a loop: rows of all iterations, joined along axis 0."""
    return [
        _concatenate(iterations.sizes, column, host)
        for column in zip(*iterations.rows, strict=True)
    ]


def _concatenate(
    counts: Sequence[int], column: Sequence[RuntimeValue], host: HostContext
) -> RuntimeValue:
    """Returns one stacked output of a loop, concatenated along axis 0.

    Args:
        counts: Per entry of `column`, the number of iterations in its stack; 0 for the row of one
            iteration.
        column: Rows of one iteration, and stacks with the rows of several iterations, in order.
        host: Runs the graph that joins the entries.
    """
    stacks: list[RuntimeValue] = []
    for several, group in groupby(zip(column, counts, strict=True), lambda pair: pair[1] > 0):
        values = [x for x, _ in group]
        stacks += values if several else [join(values, 0, True, host)]
    return stacks[0] if len(stacks) == 1 else join(stacks, 0, False, host)

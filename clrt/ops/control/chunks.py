"""Several iterations of a Loop as one graph, which the host runs at once.

A run of the body alone costs the host some 200 us; as part of such a graph an iteration is its
launches, and elementwise ops of several iterations are one kernel.
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
from clrt.ops.base import HostContext, Op, RuntimeValue
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

_FIRST = 8  # iterations that a loop makes one by one before there are graphs of several
_MOST_NODES = 2048  # of a graph: to plan a node takes about 0.2 ms
# Bytes of the outputs of a graph: what is kept at once and would be kept one after the other.
_MOST_BYTES = 64 << 20
# Of an iteration that may be made past the end: it takes less than the host needs for one, 200 us.
_LIGHT_FLOPS = 1 << 22
_LIGHT_BYTES = 1 << 20
_ROWS = 64  # least room for rows of the iterations of a launch
_ALIKE_RUNS = 3  # with one number of iterations, before a graph of so many is made


class RepeatedBodies:
    """The graphs of several iterations of a loop, for values of some shapes and dtypes.

    Of a loop whose condition is computed they go on past the end: each iteration then keeps the
    values that it was given, and what it has to be stacked is dropped.
    """

    def __init__(self, loop: Loop, types: Sequence[TensorType]) -> None:
        self._loop, self._types = loop, types
        self._graphs = dict[int, Graph | None]()
        self._kernel: LoopBody | None = None
        self._sought = False
        self._usual = self._alike = 0
        nodes = len(loop.body.nodes) + (0 if loop.goes_on else 2 + loop.carried)
        self._most = _MOST_NODES // max(nodes, 1)
        self._allowed = all(map(self._repeats, loop.body.nodes))

    @classmethod
    def of(
        cls, loop: Loop, values: Sequence[RuntimeValue], host: HostContext
    ) -> RepeatedBodies | None:
        """The graphs that a host keeps for a loop; None if it keeps none, or values are no tensors.

        Args:
            values: What the loop carries at first, and what its body captures.
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
        found: RepeatedBodies = notes[key]
        return found

    def _repeats(self, node: Node) -> bool:
        """Whether a node may be in a graph of several iterations: it fails in none past the end."""
        op = node.op
        assert isinstance(op, Op)
        if op.is_random(node.input_types):
            return False
        follows = [node.input(i) for i in op.index_inputs]
        return self._loop.goes_on or all(v is None or v.is_constant for v in follows)

    def run(
        self,
        made: Iterations,
        carried: Sequence[RuntimeValue],
        captured: Sequence[RuntimeValue],
        left: int | None,
        host: HostContext,
    ) -> tuple[list[RuntimeValue], bool] | None:
        """Makes several iterations; None if the next one is to be made alone.

        Args:
            carried: What goes into the next iteration.
            left: Number of iterations that may still be made; None for any.

        Returns:
            What goes into the iteration after them, and whether there is one by the condition.
        """
        if made.count >= _FIRST and not self._sought:
            self._seek_kernel(host)
        count = self._size(made.count, left)
        types = [TensorType(dtype_of(x), tuple(x.shape)) for x in carried]  # type: ignore[arg-type, union-attr]
        if count < 2 or any(a.shape != b.shape for a, b in zip(types, self._types, strict=False)):
            return None
        if count not in self._graphs:
            kernel = self._kernel
            made_of = self._make if kernel is None else partial(self._make_kernel, kernel)
            self._graphs[count] = made_of(count, host)
        graph = self._graphs[count]
        if graph is None or sum(v.nbytes for v in graph.outputs) > _MOST_BYTES:
            self._most = count // 2
            return None
        limit = count if left is None else min(count, left)
        check_iterations(made.count + limit, self._loop.name)
        states = self._loop.carried
        counted = self._kernel is not None or not self._loop.goes_on
        first = np.asarray(made.count, np.int64)
        inputs = [first, *carried, *captured]
        if counted:
            inputs.append(np.asarray(True) if self._kernel is None else np.asarray(limit, np.int64))
        before = made.count
        try:
            results = made.run(graph, inputs, states + counted, host, count)
        except OutOfMemoryError:
            if made.count > before:
                raise
            self._most = count // 2
            return None
        if not counted:
            return results[:states], True
        held = int(host.read(results[states]).reshape(()))
        kept = min(held, limit)
        made.keep(kept, lambda x: take(x, 0, range(kept), host))
        return results[:states], held > limit

    def _size(self, count: int, left: int | None) -> int:
        """How many iterations to make at once, after `count`."""
        if self._most < 2 or (not self._graphs and count < _FIRST):
            return 0
        most = self._most if left is None else min(self._most, left)
        if self._kernel is not None and len(self._loop.body.outputs) == 1 + self._loop.carried:
            return self._most
        if self._kernel is None and not self._allowed:
            return 0
        if count == 0 and self._usual == most and self._alike >= _ALIKE_RUNS:
            return most
        grown = max([_FIRST, *(2 * k for k, g in self._graphs.items() if g is not None)])
        if self._kernel is not None:  # it makes no iteration too many; rows take memory alone
            wanted = max(_ROWS, min(most, max(self._usual - count, count)))
            return min(1 << (wanted - 1).bit_length(), self._most)
        most = min(most, grown)
        if self._loop.goes_on:
            return 1 << most.bit_length() - 1 if most else 0
        rest = self._usual - count if self._usual > count else max(count, _FIRST)
        return min(1 << (rest - 1).bit_length(), 1 << most.bit_length() - 1) if most else 0

    def ended(self, count: int) -> None:
        """Notes the number of iterations that a run has made."""
        self._alike = self._alike + 1 if count == self._usual else 0
        self._usual = count

    def _seek_kernel(self, host: HostContext) -> None:
        """Looks whether the body can run in a kernel loop."""
        self._sought = True
        try:
            body = static_body(self._loop.body, self._types)
            if body is not None:
                host.optimise(body)
                self._kernel = LoopBody.of(body, self._loop.carried, self._loop.goes_on)
        except ClrtError:  # of an iteration that may never be; the run says so
            return
        if self._kernel is not None:
            self._most = self._kernel.most

    def _make_kernel(self, body: LoopBody, count: int, host: HostContext) -> Graph:
        """The graph of at most so many iterations in one launch.

        Inputs: the number of the first iteration, what is carried, what is captured, and the
        maximum number of iterations. Outputs as those of `_make`.
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
        """What is carried and captured, by the names by which errors find where it comes from."""
        pairs = zip(self._loop.body.inputs[2:], self._types, strict=True)
        return [build.input(v.name, t.dtype, t.shape) for v, t in pairs]

    def _make(self, count: int, host: HostContext) -> Graph | None:
        """The graph of so many iterations, optimised; None if planning cannot know its shapes.

        Inputs: the number of the first iteration, what is carried, what is captured, and True if
        the condition is computed. Outputs: what is carried; if the condition is computed, how often
        it held, before the first iteration too; what is stacked.
        """
        loop, build = self._loop, Builder()
        states, goes_on = loop.carried, loop.goes_on
        first = build.input("iteration", DType.INT64, ())
        given = self._inputs(build)
        carried, captured = given[:states], given[states:]
        rows: list[list[Value]] = []
        # A condition that holds is an input, so that the first iteration is as the others.
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
        except ClrtError:  # of an iteration that may never be; the run says so
            return None
        return graph

    def _is_light(self, nodes: Sequence[Node]) -> bool:
        """Whether the nodes of an iteration take so little that one too many does no harm."""
        outputs = [v for n in nodes for v in n.outputs]
        flops = sum(n.op.flops(n.input_types, [v.type for v in n.outputs]) for n in nodes)
        return flops <= _LIGHT_FLOPS and sum(v.nbytes for v in outputs) <= _LIGHT_BYTES

    def _copy(self, build: Builder, turn: int, given: Sequence[Value]) -> list[Value] | None:
        """The outputs of a further copy of the body; None if a shape is unknown or changes."""
        body = self._loop.body
        at, *others = given
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
            node.name = f"{node.name}[{turn}]"
            if not infer_known(node):
                return None
            for value in node.outputs:
                value.name = f"{value.name}[{turn}]"
        carried = zip(results[1:], others[: self._loop.carried], strict=False)
        same = all(
            a.type.static_shape == b.type.static_shape and a.dtype is b.dtype for a, b in carried
        )
        known = all(v.type.is_static and not v.type.on_host for v in results)
        return results if same and known else None


def stacked_rows(made: Iterations, host: HostContext) -> list[RuntimeValue]:
    """Puts together the rows that iterations made alone, and those that several made at once."""
    return [_put_together(made.sizes, column, host) for column in zip(*made.rows, strict=True)]


def _put_together(
    counts: Sequence[int], column: Sequence[RuntimeValue], host: HostContext
) -> RuntimeValue:
    parts: list[RuntimeValue] = []
    for several, group in groupby(zip(column, counts, strict=True), lambda pair: pair[1] > 0):
        found = [x for x, _ in group]
        parts += found if several else [join(found, 0, True, host)]
    return parts[0] if len(parts) == 1 else join(parts, 0, False, host)

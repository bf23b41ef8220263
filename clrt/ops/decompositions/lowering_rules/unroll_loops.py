"""Unrolls Loop and Scan at planning, if the number of iterations is known.

A subgraph that the host runs costs some 200 us per iteration for the plan's run and its waits;
unrolled into the surrounding plan, an iteration costs only its launches.
"""

from __future__ import annotations

from collections.abc import Sequence

from clrt.errors import ClrtError
from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.ir.symbolic_trace import is_traced
from clrt.ops.checks import normalize_axis
from clrt.ops.control.control_flow import Loop, Scan, counters, sink_constants
from clrt.ops.control.host_driven import infer_known, sizes
from clrt.ops.control.kernel_loop import LoopBody, repeat, static_body
from clrt.ops.decompositions.lowering_rules.row_hoisting import Hoisting
from clrt.ops.decompositions.lowering_rules.trip_count import TripCountGraph
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import Squeeze, Unsqueeze
from clrt.util.host_limits import allows_iterations

# Maximum nodes of an unrolled loop: on the first run with its input shapes, and once these shapes
# have repeated. Planning a node takes 0.2 ms, about as long as the host needs for an iteration.
_FEW_NODES = 512
_MANY_NODES = 2048
# Minimum number of iterations for a kernel loop, which has to compile a kernel.
_MIN_KERNEL_ITERATIONS = 16


@register_decomposition(Scan, audience=DecompositionStage.PLANNING)
def _inline_single_slice(node: Node, builder: Builder) -> list[Value] | None:
    """Inlines the body of a Scan with a single iteration: all scanned tensors have one slice.

    Returns None if there are more slices, or a shape is unknown.
    """
    op = node.op_as(Scan)
    inputs = [v for v in node.inputs if v is not None and v.type.is_static]
    first, end = op.states, op.states + op.num_scan_inputs
    axes = op.scan_input_axes or (0,) * op.num_scan_inputs
    if op.batched or len(inputs) < len(node.inputs):
        return None
    scanned = zip(inputs[first:end], axes, strict=True)
    if any(v.dims[normalize_axis(axis, len(v.dims), op)] != 1 for v, axis in scanned):
        return None
    actual = list(inputs)
    for k, axis in zip(range(first, end), axes, strict=True):
        actual[k] = builder.add(Squeeze(), inputs[k], builder.ints(axis))
    before = len(builder.nodes)
    results = builder.inline(op.body, actual, sizes(op.body, actual))
    read = (v for n in builder.nodes[before:] for v in n.inputs if v is not None)
    if not all(v.has_numbers for v in (*read, *results) if v.is_constant):
        return None  # the shapes that the body declares may be wrong
    axes = op.scan_output_axes or (0,) * len(results[first:])
    pairs = zip(results[first:], axes, strict=True)
    stacks = [builder.add(Unsqueeze(), value, builder.ints(axis)) for value, axis in pairs]
    return [*results[:first], *stacks]


@register_decomposition(Scan, audience=DecompositionStage.LOWERING)
def _few_slices(node: Node, builder: Builder) -> list[Value] | None:
    """Runs a Scan in one kernel that loops, or unrolls it to at most `_FEW_NODES` nodes.

    Returns the outputs of the Scan; None if both are impossible.
    """
    return _unroll_scan(node, builder, _FEW_NODES)


@register_decomposition(Scan, audience=DecompositionStage.REPEATED)
def _many_slices(node: Node, builder: Builder) -> list[Value] | None:
    """Runs a Scan in one kernel that loops, or unrolls it to at most `_MANY_NODES` nodes.

    Returns the outputs of the Scan; None if both are impossible.
    """
    return _unroll_scan(node, builder, _MANY_NODES)


@register_decomposition(Loop, audience=DecompositionStage.LOWERING)
def _few_turns(node: Node, builder: Builder) -> list[Value] | None:
    """Runs a Loop in one kernel that loops, or unrolls it to at most `_FEW_NODES` nodes.

    Returns the outputs of the Loop; None if both are impossible.
    """
    return _unroll_loop(node, builder, _FEW_NODES)


@register_decomposition(Loop, audience=DecompositionStage.REPEATED)
def _many_turns(node: Node, builder: Builder) -> list[Value] | None:
    """Runs a Loop in one kernel that loops, or unrolls it to at most `_MANY_NODES` nodes.

    Returns the outputs of the Loop; None if both are impossible.
    """
    return _unroll_loop(node, builder, _MANY_NODES)


@register_decomposition(Scan, audience=DecompositionStage.GRADIENT)
def _differentiable_slices(node: Node, builder: Builder) -> list[Value] | None:
    """Unrolls a Scan to at most `_MANY_NODES` nodes; None if that is impossible."""
    return _unroll_scan(node, builder, _MANY_NODES, in_kernel=False)


@register_decomposition(Loop, audience=DecompositionStage.GRADIENT)
def _differentiable_turns(node: Node, builder: Builder) -> list[Value] | None:
    """Unrolls a Loop to at most `_MANY_NODES` nodes; None if that is impossible."""
    return _unroll_loop(node, builder, _MANY_NODES, in_kernel=False)


def _unroll_scan(
    node: Node, builder: Builder, most: int, *, in_kernel: bool = True
) -> list[Value] | None:
    """Runs a Scan in one kernel that loops, or unrolls it: one copy of its body per slice.

    Unrolling is tried only if no kernel can run the body.

    Args:
        node: Scan node.
        builder: Adds the nodes.
        most: Maximum number of nodes of the unrolled Scan.
        in_kernel: Whether a kernel that runs all iterations is tried.

    Returns:
        The outputs of the Scan; None if a shape is unknown, or both are impossible.
    """
    op = node.op_as(Scan)
    inputs = _tensors(node.inputs)
    if op.batched or inputs is None:
        return None
    first, end = op.states, op.states + op.num_scan_inputs
    scanned = inputs[first:end]
    axes = [
        normalize_axis(axis, len(x.dims), op)
        for axis, x in zip(op.scan_input_axes or (0,) * len(scanned), scanned, strict=True)
    ]
    counts = {int(x.dims[axis]) for axis, x in zip(axes, scanned, strict=True)}
    count = counts.pop()
    if counts or count == 0 or not allows_iterations(count):
        return None
    results = _scan_in_kernel(node, builder, axes, count) if in_kernel else None
    if results is not None:
        return results
    nodes = count * (len(op.body.nodes) + len(scanned))
    if not 0 < nodes <= most:
        return None
    backwards = op.scan_input_directions or (0,) * len(scanned)
    copies, states = _Copies(node, op.body, builder), inputs[:first]
    for turn in range(count):
        indices = [builder.numbers(count - 1 - turn if back else turn) for back in backwards]
        slices = [
            builder.add(Gather(axis), x, place)
            for x, axis, place in zip(scanned, axes, indices, strict=True)
        ]
        results = copies.add([*states, *slices, *inputs[end:]])
        if results is None:
            return None
        states = results[:first]
        copies.rows.append(results[first:])
    outputs = len(op.body.outputs) - first
    output_axes = op.scan_output_axes or (0,) * outputs
    return copies.results(states, output_axes, op.scan_output_directions or (0,) * outputs)


def _scan_in_kernel(
    node: Node, builder: Builder, axes: Sequence[int], count: int
) -> list[Value] | None:
    """Runs a Scan in one kernel, which runs all iterations of the body.

    Args:
        node: Scan node.
        builder: Adds the nodes.
        axes: Axis along which each scanned tensor is cut into slices.
        count: Number of slices.

    Returns:
        The outputs of the Scan; None if a shape is unknown, there are fewer than
        `_MIN_KERNEL_ITERATIONS` slices, or no kernel can run the body.
    """
    op, inputs = sink_constants(node) or (node.op, node.inputs)
    assert isinstance(op, Scan)
    given = _tensors(inputs)
    if given is None or count < _MIN_KERNEL_ITERATIONS:
        return None
    first, end = op.states, op.states + op.num_scan_inputs
    scanned = given[first:end]
    pairs = zip(scanned, axes, strict=True)
    rows = [TensorType(x.dtype, (*x.dims[:a], *x.dims[a + 1 :])) for x, a in pairs]
    types = [*(v.type for v in given[:first]), *rows, *(v.type for v in given[end:])]
    counting = [Value("turn", TensorType(DType.INT64, ())), Value("go", TensorType(DType.BOOL, ()))]
    graph = op.body.copy()
    graph.inputs, graph.outputs = [*counting, *graph.inputs], [counting[1], *graph.outputs]
    graph.output_names = [str(k) for k in range(len(graph.outputs))]
    body = _kernel_body(graph, types, first)
    if body is None:
        return None
    moved = [_move_axis(builder, x, axis, 0) for x, axis in zip(scanned, axes, strict=True)]
    backs = map(bool, op.scan_input_directions or (0,) * len(scanned))
    stacks = len(op.body.outputs) - first
    reverses = [bool(r) for r in op.scan_output_directions or (0,) * stacks]
    row_scans = zip(moved, backs, strict=True)
    results = repeat(builder, body, count, given[:first], list(row_scans), given[end:], reverses)
    output_axes = op.scan_output_axes or (0,) * stacks
    pairs_to = zip(results[first:], output_axes, strict=True)
    stacked = [_move_axis(builder, v, 0, axis % len(v.dims)) for v, axis in pairs_to]
    return _if_compatible(node, [*results[:first], *stacked])


def _kernel_body(body: Graph, types: Sequence[TensorType], states: int) -> LoopBody | None:
    """Converts a loop body for a kernel that runs all iterations; None if no kernel can run it.

    Args:
        body: Loop body; its condition is ignored.
        types: Types of the body's inputs after the iteration number and the condition.
        states: Number of loop-carried values.
    """
    try:
        known = static_body(body, types)
        return None if known is None else LoopBody.of(known, states, goes_on=True)
    except ClrtError:  # the body may not fit its inputs; the run reports the error
        return None


def _move_axis(builder: Builder, x: Value, start: int, end: int) -> Value:
    """Moves axis `start` of a tensor to position `end`; returns x itself if they are equal."""
    order = [a for a in range(len(x.dims)) if a != start]
    order.insert(end, start)
    return x if start == end else builder.add(Transpose(tuple(order)), x)


def _loop_in_kernel(node: Node, builder: Builder, count: int) -> list[Value] | None:
    """Runs a Loop in one kernel, which runs all `count` iterations of the body.

    Returns:
        The outputs of the Loop; None if a shape is unknown, there are fewer than
        `_MIN_KERNEL_ITERATIONS` iterations, or no kernel can run the body.
    """
    op, inputs = sink_constants(node) or (node.op, node.inputs)
    assert isinstance(op, Loop)
    given = _tensors(inputs[2:])
    if given is None or count < _MIN_KERNEL_ITERATIONS or not allows_iterations(count):
        return None
    stacks = len(op.body.outputs) - 1 - op.carried
    body = _kernel_body(op.body, [v.type for v in given], op.carried)
    if body is None:
        return None
    states, captured = given[: op.carried], given[op.carried :]
    return _if_compatible(
        node, repeat(builder, body, count, states, (), captured, (False,) * stacks)
    )


def _if_compatible(node: Node, results: list[Value]) -> list[Value] | None:
    """Returns `results` if their types are compatible with the node's outputs, else None."""
    pairs = zip(node.outputs, results, strict=True)
    return results if all(v.type.is_compatible(x.type) for v, x in pairs) else None


def _unroll_loop(
    node: Node, builder: Builder, most: int, *, in_kernel: bool = True
) -> list[Value] | None:
    """Runs a Loop in one kernel that loops, or unrolls it: one copy of its body per iteration.

    Unrolling is tried only if no kernel can run the body.

    Args:
        node: Loop node.
        builder: Adds the nodes.
        most: Maximum number of nodes of the unrolled Loop.
        in_kernel: Whether a kernel that runs all iterations is tried.

    Returns:
        The outputs of the Loop; None if a shape or the number of iterations is unknown, no
        iteration runs, or both are impossible.
    """
    op = node.op_as(Loop)
    states = _tensors(node.inputs[2:])
    if states is None:
        return None
    states, captured = states[: op.carried], states[op.carried :]
    body = op.body.copy(sizes(op.body, [None, None, *states, *captured]))
    counting = TripCountGraph.of(op, body, node.inputs)
    if counting is None:
        return None
    # Counters are constants in each copy, and nodes that only compute them are dead.
    other_states = [k for k in range(op.carried) if k not in counting.places]
    stacked = body.outputs[1 + op.carried :]
    rest = Graph(
        body.name,
        list(body.inputs),
        [*(body.outputs[1 + k] for k in other_states), *stacked],
        body.nodes,
    )
    rest.remove_dead()
    if in_kernel and counting.goes_on and counting.limit is not None:
        results = _loop_in_kernel(node, builder, counting.limit)
        if results is not None:
            return results
    # Bounded as unrolling is, because counting iterations takes host time as well.
    history = counting.turns(most // max(len(rest.nodes), len(counting.graph.nodes), 1))
    if history is None or len(history) == 1 or not allows_iterations(len(history) - 1):
        return None
    results = _loop_in_kernel(node, builder, len(history) - 1) if in_kernel else None
    if results is not None:
        return results
    places = [body.inputs[2 + k] for k in counting.places]
    invariant = dict(zip(body.inputs[2 + op.carried :], captured, strict=True))
    hoisting = Hoisting(rest, invariant, [body.inputs[0], *places], len(history) - 1, builder)
    captured = [*captured, *hoisting.added]
    copies = _Copies(node, rest, builder)
    for iteration, numbers in enumerate(history):
        for k, array in numbers.items():
            states[k] = builder.numbers(array, states[k].dtype)
        if iteration + 1 == len(history):
            break
        pairs = zip(counters(body, iteration), body.inputs, strict=False)
        results = copies.add([*(builder.numbers(n, v.dtype) for n, v in pairs), *states, *captured])
        if results is None:
            return None
        for k, value in zip(other_states, results, strict=False):
            states[k] = value
        copies.rows.append(results[len(other_states) :])
    return copies.results(states, (0,) * len(stacked), (0,) * len(stacked))


def _tensors(values: Sequence[Value | None]) -> list[Value] | None:
    """Returns `values` if all are device tensors whose dims are known numbers, else None.

    Dims that are being traced (for a template) count as unknown: tracing the nodes of an unrolled
    loop takes longer than planning them for each shape, and the trace would be valid for one number
    of iterations only.
    """
    tensors = [v for v in values if v is not None and v.type.is_static and not v.type.on_host]
    traced = any(is_traced(d) for v in tensors for d in v.dims)
    return tensors if len(tensors) == len(values) and not traced else None


class _Copies:
    """Adds copies of a loop body to a graph, one per iteration.

    Attributes:
        rows: For each copy, its scan outputs, which are to be stacked; the caller appends them.
    """

    def __init__(self, node: Node, body: Graph, builder: Builder) -> None:
        self.rows: list[list[Value]] = []
        self._node, self._body, self._builder = node, body, builder
        self._count = 0

    def add(self, inputs: Sequence[Value]) -> list[Value] | None:
        """Adds a copy of the loop body.

        Args:
            inputs: Values for the inputs of the body in this iteration.

        Returns:
            Outputs of the copy; None if a shape stays unknown or a node must run on the host.
        """
        prefix, title = (f"{n}[{self._count}]." for n in (self._node.name, self._node.origins[0]))
        self._count += 1
        before = len(self._builder.nodes)
        results = self._builder.inline(self._body, inputs, sizes(self._body, inputs))
        for inner in self._builder.nodes[before:]:
            inner.name = f"{title}{inner.name}"
            if not infer_known(inner):
                return None
            for value in inner.outputs:
                value.name = f"{prefix}{value.name}"
        return _tensors(results)

    def results(
        self, states: Sequence[Value], axes: Sequence[int], backwards: Sequence[int]
    ) -> list[Value] | None:
        """Stacks the scan outputs of all copies and returns the outputs of the loop node.

        Args:
            states: Final values of the loop-carried values: the first outputs of the node.
            axes: For each scan output, the new axis along which it is stacked.
            backwards: For each scan output, 1 to stack from the last copy to the first, else 0.

        Returns:
            The outputs; None if copies differ in shape, or types differ from the node's outputs.
        """
        builder, outputs = self._builder, list(states)
        for column, axis, back in zip(zip(*self.rows, strict=True), axes, backwards, strict=True):
            if any(v.dims != column[0].dims for v in column):
                return None
            at = axis % (len(column[0].dims) + 1)
            parts = [builder.add(Unsqueeze(), v, builder.ints(at)) for v in column]
            outputs.append(builder.add(Concat(at), *(parts[::-1] if back else parts)))
        return _if_compatible(self._node, outputs)

"""Loop and Scan as so many copies of their graph, where planning knows how many.

A graph that is run by the host costs a plan's run and its waits an iteration, some 200 us; as part
of the plan around it only its launches.
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
from clrt.ops.control.row_hoisting import Hoisting
from clrt.ops.control.trip_count import TripCountGraph
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import Squeeze, Unsqueeze
from clrt.util.host_limits import allows_iterations

# Of all copies together. To plan a node takes 0.2 ms, about what the host needs for an iteration:
# so many are planned for the first run, and so many where the same shapes came several times.
_FEW_NODES = 512
_MANY_NODES = 2048
_KERNEL_TURNS = 16  # least number of iterations for a kernel loop, which compiles a kernel


@register_decomposition(Scan, audience=DecompositionStage.PLANNING)
def _one_slice(node: Node, make: Builder) -> list[Value] | None:
    """The graph of a Scan over tensors of one slice."""
    op = node.op
    assert isinstance(op, Scan)
    given = [v for v in node.inputs if v is not None and v.type.is_static]
    first, end = op.states, op.states + op.num_scan_inputs
    axes = op.scan_input_axes or (0,) * op.num_scan_inputs
    if op.batched or len(given) < len(node.inputs):
        return None
    scanned = zip(given[first:end], axes, strict=True)
    if any(v.dims[normalize_axis(axis, len(v.dims), op)] != 1 for v, axis in scanned):
        return None
    actual = list(given)
    for k, axis in zip(range(first, end), axes, strict=True):
        actual[k] = make.add(Squeeze(), given[k], make.ints(axis))
    before = len(make.nodes)
    results = make.inline(op.body, actual, sizes(op.body, actual))
    read = (v for n in make.nodes[before:] for v in n.inputs if v is not None)
    if not all(v.has_numbers for v in (*read, *results) if v.is_constant):
        return None  # what the body declares of its shapes may not hold
    axes = op.scan_output_axes or (0,) * len(results[first:])
    pairs = zip(results[first:], axes, strict=True)
    stacks = [make.add(Unsqueeze(), value, make.ints(axis)) for value, axis in pairs]
    return [*results[:first], *stacks]


@register_decomposition(Scan, audience=DecompositionStage.LOWERING)
def _few_slices(node: Node, make: Builder) -> list[Value] | None:
    return _slices(node, make, _FEW_NODES)


@register_decomposition(Scan, audience=DecompositionStage.REPEATED)
def _many_slices(node: Node, make: Builder) -> list[Value] | None:
    return _slices(node, make, _MANY_NODES)


@register_decomposition(Loop, audience=DecompositionStage.LOWERING)
def _few_turns(node: Node, make: Builder) -> list[Value] | None:
    return _turns(node, make, _FEW_NODES)


@register_decomposition(Loop, audience=DecompositionStage.REPEATED)
def _many_turns(node: Node, make: Builder) -> list[Value] | None:
    return _turns(node, make, _MANY_NODES)


def _slices(node: Node, make: Builder, most: int) -> list[Value] | None:
    """The graph of a Scan once for each slice; None for more than so many nodes."""
    op = node.op
    assert isinstance(op, Scan)
    given = _tensors(node.inputs)
    if op.batched or given is None:
        return None
    first, end = op.states, op.states + op.num_scan_inputs
    scanned = given[first:end]
    axes = [
        normalize_axis(axis, len(x.dims), op)
        for axis, x in zip(op.scan_input_axes or (0,) * len(scanned), scanned, strict=True)
    ]
    counts = {int(x.dims[axis]) for axis, x in zip(axes, scanned, strict=True)}
    count = counts.pop()
    if counts or count == 0 or not allows_iterations(count):
        return None
    in_kernel = _slices_in_kernel(node, make, axes, count)
    if in_kernel is not None:
        return in_kernel
    nodes = count * (len(op.body.nodes) + len(scanned))
    if not 0 < nodes <= most:
        return None
    backwards = op.scan_input_directions or (0,) * len(scanned)
    copies, states = _Copies(node, op.body, make), given[:first]
    for turn in range(count):
        places = [make.numbers(count - 1 - turn if back else turn) for back in backwards]
        slices = [
            make.add(Gather(axis), x, place)
            for x, axis, place in zip(scanned, axes, places, strict=True)
        ]
        results = copies.add([*states, *slices, *given[end:]])
        if results is None:
            return None
        states = results[:first]
        copies.rows.append(results[first:])
    outputs = len(op.body.outputs) - first
    to = op.scan_output_axes or (0,) * outputs
    return copies.results(states, to, op.scan_output_directions or (0,) * outputs)


def _slices_in_kernel(
    node: Node, make: Builder, axes: Sequence[int], count: int
) -> list[Value] | None:
    """The slices by one kernel; None where they are few or the graph is not small."""
    op, inputs = sink_constants(node) or (node.op, node.inputs)
    assert isinstance(op, Scan)
    given = _tensors(inputs)
    if given is None or count < _KERNEL_TURNS:
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
    moved = [_moved(make, x, axis, 0) for x, axis in zip(scanned, axes, strict=True)]
    backs = map(bool, op.scan_input_directions or (0,) * len(scanned))
    stacks = len(op.body.outputs) - first
    reverses = [bool(r) for r in op.scan_output_directions or (0,) * stacks]
    turns = zip(moved, backs, strict=True)
    found = repeat(make, body, count, given[:first], list(turns), given[end:], reverses)
    to = op.scan_output_axes or (0,) * stacks
    pairs_to = zip(found[first:], to, strict=True)
    stacked = [_moved(make, v, 0, axis % len(v.dims)) for v, axis in pairs_to]
    return _fitting(node, [*found[:first], *stacked])


def _kernel_body(body: Graph, types: Sequence[TensorType], states: int) -> LoopBody | None:
    """A body of a known number of iterations for a kernel; None if it cannot be."""
    try:
        known = static_body(body, types)
        return None if known is None else LoopBody.of(known, states, goes_on=True)
    except ClrtError:  # of a graph that may not fit its inputs; the run says so
        return None


def _moved(make: Builder, x: Value, start: int, end: int) -> Value:
    """A tensor with one of its axes at another place."""
    order = [a for a in range(len(x.dims)) if a != start]
    order.insert(end, start)
    return x if start == end else make.add(Transpose(tuple(order)), x)


def _turns_in_kernel(node: Node, make: Builder, count: int) -> list[Value] | None:
    """So many iterations by one kernel; None where they are few or the graph is not small."""
    op, inputs = sink_constants(node) or (node.op, node.inputs)
    assert isinstance(op, Loop)
    given = _tensors(inputs[2:])
    if given is None or count < _KERNEL_TURNS or not allows_iterations(count):
        return None
    stacks = len(op.body.outputs) - 1 - op.carried
    body = _kernel_body(op.body, [v.type for v in given], op.carried)
    if body is None:
        return None
    states, captured = given[: op.carried], given[op.carried :]
    return _fitting(node, repeat(make, body, count, states, (), captured, (False,) * stacks))


def _fitting(node: Node, results: list[Value]) -> list[Value] | None:
    """The outputs of a node; None where they are not what its types say."""
    pairs = zip(node.outputs, results, strict=True)
    return results if all(v.type.is_compatible(x.type) for v, x in pairs) else None


def _turns(node: Node, make: Builder, most: int) -> list[Value] | None:
    """The graph of a Loop once for each iteration, where the host can count these; None for more
    than so many nodes.
    """
    op = node.op
    assert isinstance(op, Loop)
    states = _tensors(node.inputs[2:])
    if states is None:
        return None
    states, captured = states[: op.carried], states[op.carried :]
    body = op.body.copy(sizes(op.body, [None, None, *states, *captured]))
    counting = TripCountGraph.of(op, body, node.inputs)
    if counting is None:
        return None
    # What is counted is a constant of each copy, and what serves that alone is dead.
    left = [k for k in range(op.carried) if k not in counting.places]
    stacked = body.outputs[1 + op.carried :]
    rest = Graph(
        body.name, list(body.inputs), [*(body.outputs[1 + k] for k in left), *stacked], body.nodes
    )
    rest.remove_dead()
    if counting.goes_on and counting.limit is not None:
        found = _turns_in_kernel(node, make, counting.limit)
        if found is not None:
            return found
    # To count, too, takes the host some time.
    turns = counting.turns(most // max(len(rest.nodes), len(counting.graph.nodes), 1))
    if turns is None or len(turns) == 1 or not allows_iterations(len(turns) - 1):
        return None
    found = _turns_in_kernel(node, make, len(turns) - 1)
    if found is not None:
        return found
    places = [body.inputs[2 + k] for k in counting.places]
    same = dict(zip(body.inputs[2 + op.carried :], captured, strict=True))
    hoisting = Hoisting(rest, same, [body.inputs[0], *places], len(turns) - 1, make)
    captured = [*captured, *hoisting.added]
    copies = _Copies(node, rest, make)
    for turn, numbers in enumerate(turns):
        for k, array in numbers.items():
            states[k] = make.numbers(array, states[k].dtype)
        if turn + 1 == len(turns):
            break
        pairs = zip(counters(body, turn), body.inputs, strict=False)
        results = copies.add([*(make.numbers(n, v.dtype) for n, v in pairs), *states, *captured])
        if results is None:
            return None
        for k, value in zip(left, results, strict=False):
            states[k] = value
        copies.rows.append(results[len(left) :])
    return copies.results(states, (0,) * len(stacked), (0,) * len(stacked))


def _tensors(values: Sequence[Value | None]) -> list[Value] | None:
    """The values where all are tensors of a known shape on the device.

    To trace so many nodes takes longer than to plan them for each shape, and how many there are
    would hold for one number of iterations alone: there are none while sizes are traced.
    """
    found = [v for v in values if v is not None and v.type.is_static and not v.type.on_host]
    traced = any(is_traced(d) for v in found for d in v.dims)
    return found if len(found) == len(values) and not traced else None


class _Copies:
    """Copies of a graph, one after the other.

    Attributes:
        rows: What each gives to be stacked.
    """

    def __init__(self, node: Node, body: Graph, make: Builder) -> None:
        self.rows: list[list[Value]] = []
        self._node, self._body, self._make = node, body, make
        self._count = 0

    def add(self, inputs: Sequence[Value]) -> list[Value] | None:
        """The outputs of the next copy; None where the host has a part in it, or it may fail."""
        prefix, title = (f"{n}[{self._count}]." for n in (self._node.name, self._node.origins[0]))
        self._count += 1
        before = len(self._make.nodes)
        results = self._make.inline(self._body, inputs, sizes(self._body, inputs))
        for inner in self._make.nodes[before:]:
            inner.name = f"{title}{inner.name}"
            if not infer_known(inner):
                return None
            for value in inner.outputs:
                value.name = f"{prefix}{value.name}"
        return _tensors(results)

    def results(
        self, states: Sequence[Value], axes: Sequence[int], backwards: Sequence[int]
    ) -> list[Value] | None:
        """The outputs of the node; None where they are not what its types say.

        Args:
            states: The first of them.
            axes: Along which the others are stacked.
            backwards: Whether from the last to the first.
        """
        make, found = self._make, list(states)
        for column, axis, back in zip(zip(*self.rows, strict=True), axes, backwards, strict=True):
            if any(v.dims != column[0].dims for v in column):
                return None
            at = axis % (len(column[0].dims) + 1)
            parts = [make.add(Unsqueeze(), v, make.ints(at)) for v in column]
            found.append(make.add(Concat(at), *(parts[::-1] if back else parts)))
        return _fitting(self._node, found)

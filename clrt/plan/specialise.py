"""Binds the dims of one call: shape arithmetic becomes numbers, and what follows from it folds.

Where a shape, or a number that a kernel needs, depends on computed data, there is a graph break:
what can run before is one graph, the host then reads what it depends on, and the suffix is
specialised with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from clrt.errors import PlanError, ShapeError
from clrt.ir.dims import Bindings, Shape, match_symbols, substitute
from clrt.ir.graph import Graph, Names, Node, Value
from clrt.ir.op import Array, ContainerType, TensorType
from clrt.ir.symbolic_trace import pure
from clrt.kernels.index_range import MAX_ELEMS
from clrt.ops.base import Op
from clrt.ops.control.control_flow import sink_constants
from clrt.ops.decompositions.registry import DecompositionStage, decompose
from clrt.ops.node_errors import NodeErrorContext
from clrt.plan.lifetimes import is_view
from clrt.plan.traced_constants import derive, trace_of
from clrt.util.host_limits import MAX_STEPWISE_BYTES, FoldBudget

# A folded result is a constant of the plan; larger ones are computed on the device at each run.
MAX_FOLDED_BYTES = 4 << 20
MIN_WEIGHT_BYTES = 4 << 10
# Who asks what a node stands for.
_AUDIENCES = DecompositionStage.PLANNING, DecompositionStage.LOWERING
MAX_RANK = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32


@dataclass(frozen=True)
class GraphBreak:
    """Where a graph goes on once the host has read something.

    Attributes:
        nodes: Those whose output shape or kernel depends on it; none needs another's result.
        reads: Names of the values to read: inputs of the first graph, or outputs of it.
        known: Those of `reads` that become constants of the suffix.
        host_driven: Those of `nodes` that the host drives (it finds out how much there is, such as
            NonZero, or runs graphs, such as Loop).
        suffix: The nodes from there on. Its inputs are the values that it needs of the first graph,
            and the outputs of the nodes that the host drives.
    """

    nodes: tuple[Node, ...]
    reads: tuple[str, ...]
    known: tuple[str, ...]
    host_driven: tuple[Node, ...]
    suffix: Graph

    @property
    def title(self) -> str:
        """The nodes as messages name them."""
        more = len(self.nodes) - 1
        return f"{self.nodes[0]}{f' and {more} more' if more else ''}"


def specialise(
    graph: Graph, bindings: Bindings, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Graph:
    """A copy of the graph in which every shape is a number.

    Args:
        bindings: A number for each symbol of the input shapes.
        shapes: Shapes of the inputs for which the model gives none.

    Raises:
        ShapeError: The shapes do not fit somewhere inside the graph.
        PlanError: A shape, or what a kernel needs as a number, depends on computed data.
    """
    whole, graph_break = specialise_to_break(graph, bindings, shapes or {}, {})
    if graph_break is not None:
        raise PlanError(
            f"{graph_break.title}: the shape of its output, or its kernel, depends on computed "
            "data."
        )
    return whole


def specialise_to_break(
    graph: Graph,
    bindings: Bindings,
    shapes: Mapping[str, tuple[int, ...]],
    known: Mapping[str, Array],
    donated: Collection[str] = (),
    repeated: bool = False,
) -> tuple[Graph, GraphBreak | None]:
    """As much of the graph as can be given numbers, and the cut where that is not all.

    Args:
        known: Elements of inputs, by name; these are no inputs of the copy.
        donated: Inputs whose memory the plan may write to.
        repeated: Whether it is for many runs, which are worth more time to plan.

    Raises:
        ShapeError: The shapes do not fit somewhere inside the graph.
    """
    try:
        copy = graph.copy(bindings)
    except ZeroDivisionError as error:
        given = ", ".join(f"{name}={size}" for name, size in bindings.items())
        raise ShapeError(
            f"With {given} a size inside the model is divided by zero; use larger inputs."
        ) from error
    fix_inputs(copy, shapes, known)
    for value in copy.inputs:
        _check_size(value, value.type)
    owned = {v for v in copy.inputs if v.name in donated}
    kept: list[Node] = []
    suffix: list[Node] = []
    blocked: set[Value] = set()
    sizes = dict(bindings)
    waiting: list[Node] = []
    instead: dict[Value, Value] = {}
    names = Names(())
    budget = FoldBudget.of(0)
    todo = deque(copy.nodes)
    audiences = (*_AUDIENCES, DecompositionStage.REPEATED) if repeated else _AUDIENCES
    while todo:
        node = todo.popleft()
        node.inputs = [None if v is None else _final(v, instead) for v in node.inputs]
        if owned and _lies_in(node, owned):
            assert isinstance(node.op, Op)
            node.op = node.op.in_donated()
        if any(_is_open(v, blocked, sizes) for v in node.inputs if v is not None):
            suffix.append(node)
        elif (found := decompose(node, names, *audiences)) is not None:
            nodes, results = found
            todo.extendleft(reversed(nodes))
            for value, result in zip(node.outputs, results, strict=False):
                instead[value] = result
                _tell(value, result.type, sizes)
            continue
        elif _is_driven(node) or _unread(node) or not _infer(node, sizes):
            # What shapes give is a number by now, on which shapes in its graphs may depend.
            node.op, node.inputs = sink_constants(node) or (node.op, node.inputs)
            waiting.append(node)
            suffix.append(node)
        elif not _fold(node, budget):
            kept.append(node)
        if suffix and suffix[-1] is node:
            blocked.update(node.outputs)
    copy.nodes = kept
    copy.outputs = [_final(v, instead) for v in copy.outputs]
    if waiting:
        return _break_graph(copy, waiting, suffix, sizes)
    if suffix:
        raise PlanError(f"{suffix[0]}: it reads a size that nothing in its graph tells.")
    for value in copy.outputs:
        _is_open(value, blocked, sizes)
    _leave_out_host_values(copy)
    copy.remove_dead()
    return copy, None


def fix_inputs(
    graph: Graph, shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, Array]
) -> None:
    """Gives inputs the shapes that they have in a run, and makes constants of some.

    Args:
        shapes: Of tensors; those of a known shape keep that.
        known: Elements of those that are no inputs any more.
    """
    for value in graph.inputs:
        if value.name in known:
            array = known[value.name]
            value.type = TensorType(value.dtype, array.shape, array)
        elif isinstance(value.type, ContainerType):
            continue
        elif not value.type.is_static and value.name in shapes:
            value.type = TensorType(value.dtype, shapes[value.name])
    graph.inputs = [v for v in graph.inputs if v.name not in known]


def _final(value: Value, instead: Mapping[Value, Value]) -> Value:
    while value in instead:
        value = instead[value]
    return value


def _lies_in(node: Node, owned: Collection[Value]) -> bool:
    """Whether input 0 lies in the memory of one of these values, as it is or through views."""
    value = node.input(0)
    while value is not None and value not in owned and value.producer is not None:
        maker = value.producer
        value = maker.input(0) if is_view(maker) else None
    return value in owned


def _unread(node: Node) -> bool:
    """Whether an input that must be known when the plan is made is not."""
    assert isinstance(node.op, Op)
    wanted = (node.input(i) for i in node.op.plan_time_inputs)
    return any(v is not None and not v.has_numbers for v in wanted)


def _is_driven(node: Node) -> bool:
    assert isinstance(node.op, Op)
    values = (*node.inputs, *node.outputs)
    return node.op.host_driven or any(v is not None and v.type.on_host for v in values)


def _leave_out_host_values(graph: Graph) -> None:
    """A plan has no values that never lie on the device."""
    graph.inputs = [v for v in graph.inputs if not v.type.on_host]
    pairs = zip(graph.output_names, graph.outputs, strict=True)
    kept = [(n, v) for n, v in pairs if not v.type.on_host]
    graph.output_names, graph.outputs = [n for n, _ in kept], [v for _, v in kept]


def _is_open(value: Value, blocked: set[Value], sizes: Bindings) -> bool:
    """Whether a value comes after the graph break: computed, or a size found out, there."""
    if value.is_constant and not value.has_numbers:
        value.type = value.type.bind(sizes)
        return not value.has_numbers
    return value in blocked


def _infer(node: Node, sizes: dict[str, int]) -> bool:
    """Gives the outputs their types; False where a shape depends on computed data.

    Dims that were unknown until now are added to `sizes`.
    """
    types = _types(node)
    if not all(t.is_static for t in types):
        return False
    for value, type_ in zip(node.outputs, types, strict=False):
        _check_size(value, type_)
    for value, type_ in zip(node.outputs, types, strict=False):
        _tell(value, type_, sizes)
        if value.symbolic_shape is not None and not _fits(type_, value.symbolic_shape, sizes):
            value.symbolic_shape = None  # what the file declares is wrong
        value.type = type_
    return True


def _tell(value: Value, type_: TensorType, sizes: dict[str, int]) -> None:
    """Adds the dims of a value that its type now tells."""
    for name, size in match_symbols(value.shape or (), type_.shape or ()).items():
        sizes.setdefault(name, size)


def _types(node: Node) -> list[TensorType]:
    assert isinstance(node.op, Op)
    with NodeErrorContext(node):
        return node.op.infer_with_data(node.input_types)


def _open_sizes(node: Node) -> None:
    """Leaves open the sizes of the outputs that no symbol stands for: what the file says of them
    may be wrong, and what comes out tells them.
    """
    for value, type_ in zip(node.outputs, _types(node), strict=False):
        if isinstance(value.type, ContainerType) or value.shape is None:
            continue
        if value.type.is_static:
            value.type = TensorType(value.dtype, None)
        elif type_.rank == value.type.rank:
            pairs = zip(value.shape, type_.shape or (), strict=True)
            dims = tuple(new if isinstance(old, int) else old for old, new in pairs)
            value.type = TensorType(value.dtype, dims)


def _fits(type_: TensorType, dims: Shape, sizes: Bindings) -> bool:
    """Whether dims are those of the type, by the sizes that are known: kernels go by which dims are
    one symbol.
    """
    bound = tuple(substitute(d, sizes) for d in dims)
    return type_.is_compatible(TensorType(type_.dtype, bound))


def _check_size(value: Value, type_: TensorType) -> None:
    """Sizes are not below 0, and there are no more elements than kernels count."""
    shape = type_.static_shape or ()
    if any(d < 0 for d in shape):
        raise ShapeError(f"'{value.name}' cannot have the sizes {list(shape)}.")
    if len(shape) > MAX_RANK:
        raise ShapeError(
            f"'{value.name}' has {len(shape)} axes; a tensor may have {MAX_RANK}, as in NumPy."
        )
    # NumPy counts the elements along the other axes of an empty tensor, too.
    if prod(shape) > MAX_ELEMS or (0 in shape and prod(d or 1 for d in shape) > MAX_ELEMS):
        raise ShapeError(
            f"'{value.name}' {type_} has more elements than a tensor may have ({MAX_ELEMS}); "
            "use smaller inputs."
        )


def _break_graph(
    first: Graph, waiting: list[Node], suffix: list[Node], sizes: Bindings
) -> tuple[Graph, GraphBreak]:
    """Splits off `suffix`, which starts with the `waiting` nodes: those that need data.

    All of them go into one graph_break: each costs a plan of what is left.
    """
    host_driven: list[Node] = []
    reads, known, needed = dict[Value, None](), dict[Value, None](), dict[Value, None]()
    for node in waiting:
        assert isinstance(node.op, Op)
        inputs = [v for v in node.inputs if v is not None and not v.is_constant]
        missing = [v for v in inputs if v in (node.input(i) for i in node.op.plan_time_inputs)]
        drives = any(node.input(i) in missing for i in node.op.host_driven_inputs)
        if missing and not (_is_driven(node) or drives):
            reads.update(dict.fromkeys(missing))
            known.update(dict.fromkeys(missing))
            continue
        host_driven.append(node)
        _open_sizes(node)
        needed.update(dict.fromkeys(inputs))
        # NonZero and its like need elements; control flow and sequences pass on tensors.
        tensors = [v for v in inputs if not isinstance(v.type, ContainerType)]
        reads.update(dict.fromkeys(missing if missing or node.op.host_driven else tensors))
    gone = set(host_driven)
    suffix = [n for n in suffix if n not in gone]
    made = {v for n in suffix for v in n.outputs}
    read = [v for n in suffix for v in n.inputs if v is not None]
    # The outputs of a host_driven node say how large they are, even where nothing else reads them.
    sized = [v for n in host_driven for v in n.outputs if not v.type.on_host]
    carried = dict.fromkeys(
        v for v in (*read, *first.outputs, *sized) if v not in made and not v.is_constant
    )
    after = Graph(first.name, list(carried), first.outputs, suffix, first.output_names).copy(sizes)
    computed = {v for n in first.nodes for v in n.outputs}
    first.outputs = [v for v in (carried | needed | reads) if v in computed]
    first.output_names = [v.name for v in first.outputs]
    _leave_out_host_values(first)
    first.remove_dead()
    read_names, known_names = (tuple(v.name for v in values) for values in (reads, known))
    return first, GraphBreak(tuple(waiting), read_names, known_names, tuple(host_driven), after)


def _fold(node: Node, budget: FoldBudget) -> bool:
    """Evaluates a node whose inputs are all known; its outputs become constants."""
    if all(v.has_numbers for v in node.outputs):
        arrays = [v.numbers for v in node.outputs]
    else:
        if any(v is not None and not v.is_constant for v in node.inputs):
            return False
        if any(v.nbytes > MAX_FOLDED_BYTES for v in node.outputs) or _grows_weight(node):
            return False
        assert isinstance(node.op, Op)
        given = sum(v.nbytes for v in node.inputs if v is not None)
        if node.op.has_slow_reference and given > MAX_STEPWISE_BYTES:
            return False
        made = sum(v.nbytes for v in node.outputs)
        work = given + node.op.flops(node.input_types, [v.type for v in node.outputs])
        if not budget.has(made, work):
            return False
        budget.take(made, work)
        if (trace := trace_of(v.type for v in node.inputs if v is not None)) is not None:
            derive(node, trace)
            return True
        inputs = [None if v is None else v.numbers for v in node.inputs]
        with NodeErrorContext(node):
            arrays = list(node.op.run_reference(*inputs))
    for value, array in zip(node.outputs, arrays, strict=False):
        data = array
        if array is None or array.dtype != object:
            data = np.asarray(array, value.dtype.numpy, order="C")
        value.type = TensorType(value.dtype, value.dims, data)
        value.producer = None
    return True


def _grows_weight(node: Node) -> bool:
    """Whether the node makes a weight larger that was stored in fewer bits to save memory."""
    stored = sum(v.nbytes for v in node.inputs if v is not None)
    return bool(_grows(stored, sum(v.nbytes for v in node.outputs)))


@pure  # one guard of a trace, not two
def _grows(stored_bytes: int, made_bytes: int) -> int:
    return int(made_bytes > stored_bytes >= MIN_WEIGHT_BYTES)

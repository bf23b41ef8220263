"""Binds the symbolic dims of a graph to the input shapes of a call, and folds shape arithmetic.

If a shape, or a number that a kernel needs at planning, depends on computed data, the graph is
split at a graph break. The nodes that can run before the break are one graph. The host then reads
the data, and the suffix is specialised with these data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from math import prod

import numpy as np

from clrt.errors import PlanError, ShapeError
from clrt.ir.dims import Bindings, Shape, match_symbols, substitute
from clrt.ir.graph import Graph, Names, Node, Value
from clrt.ir.node_errors import NodeErrorContext
from clrt.ir.op import Array, ContainerType, TensorType
from clrt.kernels.index_range import MAX_ELEMS
from clrt.kernels.size_formulas import grows
from clrt.ops.base import Op
from clrt.ops.control.control_flow import sink_constants
from clrt.ops.decompositions.registry import DecompositionStage, decompose
from clrt.plan.graph_break import GraphBreak
from clrt.plan.lifetimes import is_view
from clrt.plan.traced_constants import derive, trace_of
from clrt.util.background import yield_point
from clrt.util.host_limits import MAX_STEPWISE_BYTES, FoldBudget

# Maximum size of a folded result in bytes: it becomes a constant of the plan. Larger results are
# computed on the device at each run.
MAX_FOLDED_BYTES = 4 << 20
# Minimum size of a compressed weight in bytes: one this large is not folded into a larger constant.
MIN_WEIGHT_BYTES = 4 << 10
# Stages whose decompositions are expanded.
_AUDIENCES = DecompositionStage.PLANNING, DecompositionStage.LOWERING
# Maximum number of axes of a tensor: NumPy's limit.
MAX_RANK = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32


def specialise(
    graph: Graph, bindings: Bindings, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Graph:
    """Returns a copy of a graph in which every shape is static: dims are bound to sizes.

    Args:
        bindings: Size of each symbol of the input shapes.
        shapes: Shapes of the inputs for which the model declares none, by name; None if there are
            none.

    Raises:
        ShapeError: The shapes are inconsistent with an op inside the graph.
        PlanError: A shape, or a number that a kernel needs at planning, depends on computed data.
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
    """Binds the dims of a copy of a graph to sizes, up to the first graph break.

    Args:
        bindings: Size of each symbol of the input shapes.
        shapes: Shapes of the inputs for which the model declares none, by name.
        known: Elements of inputs to turn into constants, by name.
        donated: Names of inputs whose memory the plan may overwrite.
        repeated: Whether the plan serves many runs, so that planning may take longer.

    Returns:
        The specialised graph, and the graph break at its end; None instead of the break if the
        whole graph is specialised.

    Raises:
        ShapeError: The shapes are inconsistent with an op inside the graph.
        PlanError: A size is not determined by the inputs of the graph.
    """
    try:
        copy = graph.copy(bindings)
    except ZeroDivisionError as error:
        sizes_text = ", ".join(f"{name}={size}" for name, size in bindings.items())
        raise ShapeError(
            f"With {sizes_text} a size inside the model is divided by zero; use larger inputs."
        ) from error
    fix_inputs(copy, shapes, known)
    for value in copy.inputs:
        _check_size(value, value.type)
    donated_values = {v for v in copy.inputs if v.name in donated}
    planned: list[Node] = []
    suffix: list[Node] = []
    blocked: set[Value] = set()
    sizes = dict(bindings)
    waiting: list[Node] = []
    replacements: dict[Value, Value] = {}
    names = Names(())
    budget = FoldBudget.of(0)
    todo = deque(copy.nodes)
    audiences = (*_AUDIENCES, DecompositionStage.REPEATED) if repeated else _AUDIENCES
    while todo:
        yield_point()
        node = todo.popleft()
        node.inputs = [None if v is None else _resolve(v, replacements) for v in node.inputs]
        if donated_values and _aliases_any(node, donated_values):
            node.op = node.op_as(Op).in_donated()
        if any(_is_open(v, blocked, sizes) for v in node.inputs if v is not None):
            suffix.append(node)
        elif (decomposition := decompose(node, names, *audiences)) is not None:
            nodes, results = decomposition
            todo.extendleft(reversed(nodes))
            for value, result in zip(node.outputs, results, strict=False):
                replacements[value] = result
                _record_sizes(value, result.type, sizes)
            continue
        elif _is_host_driven(node) or _lacks_plan_time_input(node) or not _infer(node, sizes):
            # Inputs computed from shapes are constant by now; its graphs may need them.
            node.op, node.inputs = sink_constants(node) or (node.op, node.inputs)
            waiting.append(node)
            suffix.append(node)
        elif not _fold(node, budget):
            planned.append(node)
        if suffix and suffix[-1] is node:
            blocked.update(node.outputs)
    copy.nodes = planned
    copy.outputs = [_resolve(v, replacements) for v in copy.outputs]
    if waiting:
        return _break_graph(copy, waiting, suffix, sizes)
    if suffix:
        raise PlanError(f"{suffix[0]}: it uses a size that no input of its graph determines.")
    for value in copy.outputs:
        _is_open(value, blocked, sizes)
    _drop_host_values(copy)
    copy.remove_dead()
    return copy, None


def fix_inputs(
    graph: Graph, shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, Array]
) -> None:
    """Sets the shapes of a graph's inputs for a run; turns inputs of known elements into constants.

    Args:
        shapes: Shapes of input tensors by name. Inputs that have a static shape already are not
            changed.
        known: Elements, by name, of the inputs to turn into constants.
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


def _resolve(value: Value, replacements: Mapping[Value, Value]) -> Value:
    """Returns the final replacement of a value; the value itself if it is not replaced.

    Args:
        replacements: New value by old value; new values may be replaced in turn.
    """
    while value in replacements:
        value = replacements[value]
    return value


def _aliases_any(node: Node, owned: Collection[Value]) -> bool:
    """Returns whether input 0 of a node is one of the values in `owned`, or a view of one."""
    value = node.input(0)
    while value is not None and value not in owned and value.producer is not None:
        maker = value.producer
        value = maker.input(0) if is_view(maker) else None
    return value in owned


def _lacks_plan_time_input(node: Node) -> bool:
    """Returns whether the elements of an input that planning needs are unknown."""
    op = node.op_as(Op)
    wanted = (node.input(i) for i in op.input_traits.plan_time)
    return any(v is not None and not v.has_numbers for v in wanted)


def _is_host_driven(node: Node) -> bool:
    """Returns whether the host executes a node, by its op or because a value is on the host."""
    values = (*node.inputs, *node.outputs)
    return node.op_as(Op).host_traits.host_driven or any(
        v is not None and v.type.on_host for v in values
    )


def _drop_host_values(graph: Graph) -> None:
    """Removes graph inputs and outputs that are on the host: plans hold device values only."""
    graph.inputs = [v for v in graph.inputs if not v.type.on_host]
    pairs = zip(graph.output_names, graph.outputs, strict=True)
    device_outputs = [(n, v) for n, v in pairs if not v.type.on_host]
    graph.output_names, graph.outputs = (
        [n for n, _ in device_outputs],
        [v for _, v in device_outputs],
    )


def _is_open(value: Value, blocked: set[Value], sizes: Bindings) -> bool:
    """Returns whether a value is unknown before the graph break is executed.

    Also binds known symbols in the elements of a constant, such as a shape, in place.

    Args:
        blocked: Values computed after the graph break.
        sizes: Sizes of the symbols known so far.
    """
    if value.is_constant and not value.has_numbers:
        value.type = value.type.bind(sizes)
        return not value.has_numbers
    return value in blocked


def _infer(node: Node, sizes: dict[str, int]) -> bool:
    """Sets the types of a node's outputs; returns False if a shape depends on computed data.

    Args:
        sizes: Sizes of symbols known so far. Sizes that the inferred shapes determine are added.

    Raises:
        ShapeError: A size is negative, or a tensor exceeds the limits of rank or elements.
    """
    types = _types(node)
    if not all(t.is_static for t in types):
        return False
    for value, type_ in zip(node.outputs, types, strict=False):
        _check_size(value, type_)
    for value, type_ in zip(node.outputs, types, strict=False):
        _record_sizes(value, type_, sizes)
        if value.symbolic_shape is not None and not _fits(type_, value.symbolic_shape, sizes):
            value.symbolic_shape = None  # the file's declaration is wrong
        value.type = type_
    return True


def _record_sizes(value: Value, type_: TensorType, sizes: dict[str, int]) -> None:
    """Adds to `sizes` the symbols of a value's declared shape that its inferred type determines.

    Args:
        value: The value, with its declared type.
        type_: The inferred type.
        sizes: Size by symbol; known sizes are not changed.
    """
    for name, size in match_symbols(value.shape or (), type_.shape or ()).items():
        sizes.setdefault(name, size)


def _types(node: Node) -> list[TensorType]:
    """Infers the types of a node's outputs, and the elements that follow from known inputs."""
    with NodeErrorContext(node):
        return node.op_as(Op).infer_with_data(node.input_types)


def _reset_sizes(node: Node) -> None:
    """Replaces declared static dims of a host-driven node's outputs by inferred or unknown dims.

    Static dims in the file may be wrong, so the sizes of the computed outputs are used instead.
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
    """Returns whether a declared shape agrees with an inferred type.

    Kernels are chosen by the declared shape: dims of the same symbol are assumed to be equal.

    Args:
        type_: The inferred type, with a static shape.
        dims: The declared shape, which may be symbolic.
        sizes: Sizes of the symbols known so far.
    """
    bound = tuple(substitute(d, sizes) for d in dims)
    return type_.is_compatible(TensorType(type_.dtype, bound))


def _check_size(value: Value, type_: TensorType) -> None:
    """Checks that a value's sizes are not negative, and that rank and elements are in bounds.

    Raises:
        ShapeError: A size is negative, or the rank or the number of elements is too large.
    """
    shape = type_.static_shape or ()
    if any(d < 0 for d in shape):
        raise ShapeError(f"'{value.name}' cannot have the sizes {list(shape)}.")
    if len(shape) > MAX_RANK:
        raise ShapeError(
            f"'{value.name}' has {len(shape)} axes; a tensor may have {MAX_RANK}, as in NumPy."
        )
    # NumPy also bounds the number of elements along the other axes of an empty tensor.
    if prod(shape) > MAX_ELEMS or (0 in shape and prod(d or 1 for d in shape) > MAX_ELEMS):
        raise ShapeError(
            f"'{value.name}' {type_} has more elements than a tensor may have ({MAX_ELEMS}); "
            "use smaller inputs."
        )


def _break_graph(
    first: Graph, waiting: list[Node], suffix: list[Node], sizes: Bindings
) -> tuple[Graph, GraphBreak]:
    """Splits a specialised graph at a graph break.

    Args:
        first: The graph; it keeps the nodes before the break.
        waiting: Nodes that need computed data. One graph break serves all of them, since each break
            costs another plan of the suffix.
        suffix: The nodes in `waiting`, and all nodes that depend on these.
        sizes: Sizes of the symbols known so far.

    Returns:
        The graph before the break, and the break.
    """
    host_driven: list[Node] = []
    reads, known, needed = dict[Value, None](), dict[Value, None](), dict[Value, None]()
    for node in waiting:
        op = node.op_as(Op)
        inputs = [v for v in node.inputs if v is not None and not v.is_constant]
        traits = op.input_traits
        missing = [v for v in inputs if v in (node.input(i) for i in traits.plan_time)]
        drives = any(node.input(i) in missing for i in traits.host_driven)
        if missing and not (_is_host_driven(node) or drives):
            reads.update(dict.fromkeys(missing))
            known.update(dict.fromkeys(missing))
            continue
        host_driven.append(node)
        _reset_sizes(node)
        needed.update(dict.fromkeys(inputs))
        # NonZero and similar ops need elements; control flow and sequences pass tensors on.
        tensors = [v for v in inputs if not isinstance(v.type, ContainerType)]
        driven = op.host_traits.host_driven
        reads.update(dict.fromkeys(missing if missing or driven else tensors))
    host_nodes = set(host_driven)
    suffix = [n for n in suffix if n not in host_nodes]
    suffix_values = {v for n in suffix for v in n.outputs}
    read = [v for n in suffix for v in n.inputs if v is not None]
    # Outputs of host-driven nodes are inputs of the suffix even if unread: they determine sizes.
    sized = [v for n in host_driven for v in n.outputs if not v.type.on_host]
    suffix_inputs = dict.fromkeys(
        v for v in (*read, *first.outputs, *sized) if v not in suffix_values and not v.is_constant
    )
    after = Graph(first.name, list(suffix_inputs), first.outputs, suffix, first.output_names).copy(
        sizes
    )
    computed = {v for n in first.nodes for v in n.outputs}
    first.outputs = [v for v in (suffix_inputs | needed | reads) if v in computed]
    first.output_names = [v.name for v in first.outputs]
    _drop_host_values(first)
    first.remove_dead()
    read_names, known_names = (tuple(v.name for v in values) for values in (reads, known))
    return first, GraphBreak(tuple(waiting), read_names, known_names, tuple(host_driven), after)


def _fold(node: Node, budget: FoldBudget) -> bool:
    """Turns outputs of a node into constants: known elements, or evaluated from constant inputs.

    Returns:
        Whether the outputs are constants now. False if an input is not constant, if the budget is
        used up, or if evaluation would be slow, make large results or expand a compact weight.
    """
    if all(v.has_numbers for v in node.outputs):
        arrays = [v.numbers for v in node.outputs]
    else:
        if any(v is not None and not v.is_constant for v in node.inputs):
            return False
        if any(v.nbytes > MAX_FOLDED_BYTES for v in node.outputs) or _grows_weight(node):
            return False
        op = node.op_as(Op)
        input_bytes = sum(v.nbytes for v in node.inputs if v is not None)
        if op.host_traits.has_slow_reference and input_bytes > MAX_STEPWISE_BYTES:
            return False
        output_bytes = sum(v.nbytes for v in node.outputs)
        work = input_bytes + op.flops(node.input_types, [v.type for v in node.outputs])
        if not budget.has(output_bytes, work):
            return False
        budget.take(output_bytes, work)
        if (trace := trace_of(v.type for v in node.inputs if v is not None)) is not None:
            derive(node, trace)
            return True
        inputs = [None if v is None else v.numbers for v in node.inputs]
        with NodeErrorContext(node):
            arrays = list(op.run_reference(*inputs))
    for value, array in zip(node.outputs, arrays, strict=False):
        data = array
        if array is None or array.dtype != object:
            data = np.asarray(array, value.dtype.numpy, order="C")
        value.type = TensorType(value.dtype, value.dims, data)
        value.producer = None
    return True


def _grows_weight(node: Node) -> bool:
    """Returns whether folding a node would expand a compactly stored weight, such as of 4 bits."""
    stored = sum(v.nbytes for v in node.inputs if v is not None)
    return bool(grows(stored, sum(v.nbytes for v in node.outputs), MIN_WEIGHT_BYTES))

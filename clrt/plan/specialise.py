"""Binds the dims of one call: shape arithmetic becomes numbers, and what follows from it folds.

Where a shape, or a number that a kernel needs, depends on computed data the graph is cut: what can
run before is one graph, the host then reads what it depends on, and the rest is specialised with
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from clrt.errors import ClrtError, PlanError, ShapeError, reworded
from clrt.ir.dims import Bindings, Shape, is_symbol
from clrt.ir.graph import Graph, Names, Node, Value
from clrt.ir.op import Array, ContainerType, TensorType
from clrt.ops.base import Op, stand_in

# A folded result is a constant of the plan; larger ones are computed on the device at each run.
MAX_FOLDED_BYTES = 4 << 20
MIN_WEIGHT_BYTES = 4 << 10


@dataclass(frozen=True)
class Cut:
    """Where a graph goes on once the host has read something.

    Attributes:
        node: The node whose output shape or kernel depends on it.
        reads: Names of the values to read: inputs of the first graph, or outputs of it.
        driven: The host drives the node (it finds out how much there is, such as NonZero, or runs
            graphs, such as Loop). Else the values that were read become constants of the rest.
        rest: The nodes from there on. Its inputs are the values that it needs of the first graph,
            and the outputs of the node where the host drives it.
    """

    node: Node
    reads: tuple[str, ...]
    driven: bool
    rest: Graph


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
    whole, cut = specialise_to_cut(graph, bindings, shapes or {}, {})
    if cut is not None:
        raise PlanError(
            f"{cut.node}: the shape of its output, or its kernel, depends on computed data."
        )
    return whole


def specialise_to_cut(
    graph: Graph,
    bindings: Bindings,
    shapes: Mapping[str, tuple[int, ...]],
    known: Mapping[str, Array],
) -> tuple[Graph, Cut | None]:
    """As much of the graph as can be given numbers, and the cut where that is not all.

    Args:
        known: Elements of inputs, by name; these are no inputs of the copy.

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
    for value in copy.inputs:
        if value.name in known:
            array = known[value.name]
            value.type = TensorType(value.dtype, array.shape, array)
        elif isinstance(value.type, ContainerType):
            continue
        elif not value.type.is_static and value.name in shapes:
            value.type = TensorType(value.dtype, shapes[value.name])
    copy.inputs = [v for v in copy.inputs if v.name not in known]
    for value in copy.inputs:
        _check_size(value, value.type)
    kept: list[Node] = []
    rest: list[Node] = []
    blocked: set[Value] = set()
    sizes = dict(bindings)
    needs_data: Node | None = None
    instead: dict[Value, Value] = {}
    names = Names(())
    todo = deque(copy.nodes)
    while todo:
        node = todo.popleft()
        node.inputs = [None if v is None else _final(v, instead) for v in node.inputs]
        if any(_is_open(v, blocked, sizes) for v in node.inputs if v is not None):
            rest.append(node)
        elif (body := stand_in(node, names)) is not None:
            todo.extendleft(reversed(body.nodes))
            instead.update(zip(node.outputs, body.outputs, strict=True))
            continue
        elif _is_driven(node) or _unread(node) or not _infer(node, sizes):
            needs_data = needs_data or node
            rest.append(node)
        elif not _fold(node):
            kept.append(node)
        if rest and rest[-1] is node:
            blocked.update(node.outputs)
    copy.nodes = kept
    copy.outputs = [_final(v, instead) for v in copy.outputs]
    if needs_data is not None:
        return _cut(copy, needs_data, rest, sizes)
    if rest:
        raise PlanError(f"{rest[0]}: it reads a size that nothing in its graph tells.")
    for value in copy.outputs:
        _is_open(value, blocked, sizes)
    _leave_out_host_values(copy)
    copy.remove_dead()
    return copy, None


def _final(value: Value, instead: Mapping[Value, Value]) -> Value:
    while value in instead:
        value = instead[value]
    return value


def _unread(node: Node) -> bool:
    """Whether an input that must be known when the plan is made is not."""
    assert isinstance(node.op, Op)
    wanted = (node.input(i) for i in node.op.host_inputs)
    return any(v is not None and not v.has_numbers for v in wanted)


def _is_driven(node: Node) -> bool:
    assert isinstance(node.op, Op)
    values = (*node.inputs, *node.outputs)
    return node.op.driven or any(v is not None and v.type.on_host for v in values)


def _leave_out_host_values(graph: Graph) -> None:
    """A plan has no values that never lie on the device."""
    graph.inputs = [v for v in graph.inputs if not v.type.on_host]
    pairs = zip(graph.output_names, graph.outputs, strict=True)
    kept = [(n, v) for n, v in pairs if not v.type.on_host]
    graph.output_names, graph.outputs = [n for n, _ in kept], [v for _, v in kept]


def _is_open(value: Value, blocked: set[Value], sizes: Bindings) -> bool:
    """Whether a value comes after the cut: computed there, or a size that is found out there."""
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
        for before, after in zip(value.shape or (), type_.shape or (), strict=False):
            if is_symbol(before) and isinstance(after, int):
                sizes[str(before)] = after
        if value.symbolic is not None and not _fits(type_, value.symbolic):
            value.symbolic = None  # what the file declares is wrong
        value.type = type_
    return True


def _types(node: Node) -> list[TensorType]:
    assert isinstance(node.op, Op)
    try:
        return node.op.infer_with_data(node.input_types)
    except ClrtError as error:
        raise reworded(error, f"{node.op.name} '{node.name}': {error}") from error


def _open_sizes(node: Node) -> None:
    """Leaves open the sizes of the outputs that only the file tells: they may be wrong."""
    for value, type_ in zip(node.outputs, _types(node), strict=False):
        if value.shape is not None and type_.rank == value.type.rank:
            pairs = zip(value.shape, type_.shape or (), strict=True)
            dims = tuple(new if isinstance(old, int) else old for old, new in pairs)
            value.type = TensorType(value.dtype, dims)


def _fits(type_: TensorType, dims: Shape) -> bool:
    return type_.agrees(TensorType(type_.dtype, dims))


def _check_size(value: Value, type_: TensorType) -> None:
    """Sizes are not below 0, and kernels count elements with 32 bits."""
    shape = type_.static_shape or ()
    if any(d < 0 for d in shape):
        raise ShapeError(f"'{value.name}' cannot have the sizes {list(shape)}.")
    if prod(shape) >= 1 << 31:
        raise ShapeError(
            f"'{value.name}' {type_} has more elements than a tensor may have ({2**31 - 1}); "
            "use smaller inputs."
        )


def _cut(first: Graph, node: Node, rest: list[Node], sizes: Bindings) -> tuple[Graph, Cut]:
    """Splits off `rest`, where `node` is the one that needs data."""
    assert isinstance(node.op, Op)
    inputs = [v for v in node.inputs if v is not None and not v.is_constant]
    missing = [v for v in inputs if v in (node.input(i) for i in node.op.host_inputs)]
    driven = _is_driven(node) or not missing
    # NonZero and its like need elements; control flow and sequences pass tensors on as they are.
    tensors = [v for v in inputs if not isinstance(v.type, ContainerType)]
    reads = missing if node.op.driven or not driven else tensors
    if driven:
        _open_sizes(node)
        rest = [n for n in rest if n is not node]
    made = {v for n in rest for v in n.outputs}
    needed = [v for n in rest for v in n.inputs if v is not None]
    # The outputs of a driven node say how large they are, even where nothing else reads them.
    sized = [v for v in node.outputs if driven and not v.type.on_host]
    carried = dict.fromkeys(
        v for v in (*needed, *first.outputs, *sized) if v not in made and not v.is_constant
    )
    after = Graph(first.name, list(carried), first.outputs, rest, first.output_names).copy(sizes)
    computed = {v for n in first.nodes for v in n.outputs}
    wanted = dict.fromkeys((*carried, *(inputs if driven else reads)))
    first.outputs = [v for v in wanted if v in computed]
    first.output_names = [v.name for v in first.outputs]
    _leave_out_host_values(first)
    first.remove_dead()
    return first, Cut(node, tuple(dict.fromkeys(v.name for v in reads)), driven, after)


def _fold(node: Node) -> bool:
    """Evaluates a node whose inputs are all known; its outputs become constants."""
    if all(v.has_numbers for v in node.outputs):
        arrays = [v.numbers for v in node.outputs]
    else:
        if any(v is not None and not v.is_constant for v in node.inputs):
            return False
        if any(v.nbytes > MAX_FOLDED_BYTES for v in node.outputs) or _grows_weight(node):
            return False
        assert isinstance(node.op, Op)
        inputs = [None if v is None else v.numbers for v in node.inputs]
        arrays = list(node.op.compute(*inputs))
    for value, array in zip(node.outputs, arrays, strict=False):
        data = np.asarray(array, value.dtype.numpy, order="C")
        value.type = TensorType(value.dtype, data.shape, data)
        value.producer = None
    return True


def _grows_weight(node: Node) -> bool:
    """Whether the node makes a weight larger that was stored in fewer bits to save memory."""
    stored = sum(v.nbytes for v in node.inputs if v is not None)
    return stored >= MIN_WEIGHT_BYTES and sum(v.nbytes for v in node.outputs) > stored

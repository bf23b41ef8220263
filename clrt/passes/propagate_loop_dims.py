"""Tells the graph of a loop the sizes of what it carries, where each turn keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from clrt.errors import ClrtError
from clrt.ir.dims import Dim, Shape, is_symbol, is_unknown, provably_equal
from clrt.ir.graph import Graph, Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.checks import normalize_axis
from clrt.ops.control.control_flow import Loop, Scan
from clrt.passes.driver import GraphView, Match, Miss, Pass, infer_types


class CarryShapes(Pass):
    """A size that a turn gives back as it took it is always the one that the loop began with.

    Files give the sizes of what is carried names of their own: nothing that reads it together with
    other tensors would be fused.
    """

    name = "carry_shapes"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (Loop, Scan))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        assert isinstance(node.op, (Loop, Scan))
        try:
            body = _body(node)
        except ClrtError:  # sizes or axes that do not fit each other, which a run says
            return None
        return None if body is None else Match(view, node, payload=body)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        assert isinstance(node.op, (Loop, Scan))
        outputs = build.add_all(replace(node.op, body=match.payload), *node.inputs)
        return build.patch(dict(zip(node.outputs, outputs, strict=True)))


def _body(node: Node) -> Graph | None:
    """The graph of a loop that knows more sizes; None where it knows them, or they change."""
    assert isinstance(node.op, (Loop, Scan))
    told = _resolved_dims(node)
    while told:
        body = node.op.body.copy(told)
        infer_types(body)
        wrong = _changed(node, body, told)
        if not wrong:
            return body
        told = {name: dim for name, dim in told.items() if name not in wrong}
    return None


def _resolved_dims(node: Node) -> dict[str, Dim]:
    """What the unknown sizes of the inputs of a loop's graph are in its first turn."""
    found: dict[str, Dim] = {}
    for formal, shape in _given(node):
        for dim, size in zip(formal.shape or (), shape, strict=False):
            # Others would have to be computed back from the sizes of a run.
            plain = isinstance(size, int) or (is_symbol(size) and not is_unknown(size))
            if not (is_symbol(dim) and is_unknown(dim)):
                continue
            if not plain or not provably_equal(found.setdefault(str(dim), size), size):
                found[str(dim)] = dim
    return {name: size for name, size in found.items() if str(size) != name}


def _given(node: Node) -> Iterator[tuple[Value, Shape]]:
    """The inputs of a loop's graph, and the shapes that they have in the first turn."""
    op = node.op
    if isinstance(op, Loop):
        for formal, value in zip(op.body.inputs[2:], node.inputs[2:], strict=False):
            yield formal, (None if value is None else value.shape) or ()
    elif isinstance(op, Scan) and not op.batched:
        end = op.states + op.num_scan_inputs
        axes = op.scan_input_axes or (0,) * op.num_scan_inputs
        for k, (formal, value) in enumerate(zip(op.body.inputs, node.inputs, strict=False)):
            shape = (None if value is None else value.shape) or ()
            if shape and op.states <= k < end:
                axis = normalize_axis(axes[k - op.states], len(shape), op)
                shape = shape[:axis] + shape[axis + 1 :]
            yield formal, shape


def _changed(node: Node, body: Graph, told: dict[str, Dim]) -> set[str]:
    """The sizes among `told` that a turn does not give back."""
    op = node.op
    assert isinstance(op, (Loop, Scan))
    inputs = (
        op.body.inputs[2 : 2 + op.carried] if isinstance(op, Loop) else op.body.inputs[: op.states]
    )
    outputs = body.outputs[1:] if isinstance(op, Loop) else body.outputs
    wrong = set()
    for formal, result in zip(inputs, outputs, strict=False):
        shape = result.shape or ()
        for axis, dim in enumerate(formal.shape or ()):
            size = told.get(str(dim))
            kept = (
                len(shape) == formal.type.rank
                and size is not None
                and provably_equal(shape[axis], size)
            )
            if size is not None and not kept:
                wrong.add(str(dim))
    return wrong

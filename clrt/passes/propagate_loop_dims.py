"""Propagates dims of loop-carried values that stay the same into loop bodies."""

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


class PropagateLoopDims(Pass):
    """Dim of a loop-carried value that no iteration changes -> its initial size, in the body.

    Exporters give dims inside the body symbols of their own. So fusion could not prove such a dim
    equal to the dim of a tensor from outside the loop.
    """

    name = "carry_shapes"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (Loop, Scan))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        try:
            body = _body(node)
        except ClrtError:  # inconsistent sizes or axes, which a run reports
            return None
        return None if body is None else Match(view, node, payload=body)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        outputs = build.add_all(replace(node.op_as(Loop, Scan), body=match.payload), *node.inputs)
        return build.patch(dict(zip(node.outputs, outputs, strict=True)))


def _body(node: Node) -> Graph | None:
    """Returns a copy of a loop's body with loop-invariant dims resolved; None if there are none."""
    op = node.op_as(Loop, Scan)
    resolved = _resolved_dims(node)
    while resolved:
        body = op.body.copy(resolved)
        infer_types(body)
        changed = _changed(node, body, resolved)
        if not changed:
            return body
        resolved = {name: dim for name, dim in resolved.items() if name not in changed}
    return None


def _resolved_dims(node: Node) -> dict[str, Dim]:
    """Returns the sizes in the first iteration of the unknown dims of a loop body's inputs.

    Symbols with several sizes, or with a size that is an expression, are left out.

    Returns:
        Size by symbol: a number, or a dim of the graph around the loop.
    """
    sizes: dict[str, Dim] = {}
    for formal, shape in _initial_shapes(node):
        for dim, size in zip(formal.shape or (), shape, strict=False):
            # Expressions would have to be solved for their symbols at run time.
            is_plain = isinstance(size, int) or (is_symbol(size) and not is_unknown(size))
            if not (is_symbol(dim) and is_unknown(dim)):
                continue
            if not is_plain or not provably_equal(sizes.setdefault(str(dim), size), size):
                sizes[str(dim)] = dim
    return {name: size for name, size in sizes.items() if str(size) != name}


def _initial_shapes(node: Node) -> Iterator[tuple[Value, Shape]]:
    """Yields each input of a loop body with its shape in the first iteration, () if unknown."""
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


def _changed(node: Node, body: Graph, resolved: dict[str, Dim]) -> set[str]:
    """Returns the symbols in `resolved` whose sizes an iteration changes or may change.

    Args:
        node: The loop, with its original body.
        body: Copy of the body in which `resolved` is bound and types are inferred.
        resolved: Sizes of unknown dims in the first iteration, by symbol.
    """
    op = node.op_as(Loop, Scan)
    inputs = (
        op.body.inputs[2 : 2 + op.carried] if isinstance(op, Loop) else op.body.inputs[: op.states]
    )
    outputs = body.outputs[1:] if isinstance(op, Loop) else body.outputs
    changed = set()
    for formal, result in zip(inputs, outputs, strict=False):
        shape = result.shape or ()
        for axis, dim in enumerate(formal.shape or ()):
            size = resolved.get(str(dim))
            is_kept = (
                len(shape) == formal.type.rank
                and size is not None
                and provably_equal(shape[axis], size)
            )
            if size is not None and not is_kept:
                changed.add(str(dim))
    return changed

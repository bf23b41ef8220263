"""Imports Gradient nodes: derivatives of a value of the model by values that it depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.builder import Builder
from clrt.ir.graph import Node, Value
from clrt.ir.node_errors import NodeErrorContext
from clrt.models.onnx.context import Context, broken
from clrt.models.onnx.scope import UNSUPPORTED_VALUE, NodeCall, Scope
from clrt.ops.gradients.transform import add_gradients, check_captures, influences
from clrt.ops.movement.views import Identity
from clrt.util import env_vars


def import_gradient(call: NodeCall, scope: Scope, context: Context) -> list[Value | None]:
    """Imports a Gradient node and returns its outputs; None for omitted ones.

    `y` is differentiated as a function of the values that `xs` and `zs` name. If the node's inputs
    are other values, the nodes between are copied for these inputs. A `y` of several elements is
    summed.

    Raises:
        ModelError: An attribute is missing, or names a value that does not exist; or the graph with
            its gradients exceeds CLRT_NODE_LIMIT.
        ShapeError: The inputs do not fit in place of the values.
        UnsupportedError: An op between has no gradient, or the values are not floating point.
    """
    names = {a.name: onnx.helper.get_attribute_value(a) for a in call.attributes}
    xs, zs = (list(map(_text, names.get(key, ()))) for key in ("xs", "zs"))
    y = _text(names.get("y", b""))
    inputs = call.inputs + [None] * (len(xs) + len(zs) - len(call.inputs))
    if not xs or not y or len(inputs) > len(xs) + len(zs):
        raise ModelError(f"{call.title} needs 'y', 'xs', and one input per name in 'xs' and 'zs'.")
    for name in (*xs, *zs, y):
        if not scope.has(name):
            raise ModelError(f"{call.title} names '{name}', which is not a value of its graph.")
    variables = [context.look_up(name, scope) for name in (*xs, *zs)]
    target = context.look_up(y, scope)
    values = [*inputs, *variables, target]
    if any(v is UNSUPPORTED_VALUE for v in values):
        return broken(call)
    present = [v for v in values if v is not None]
    if len(present) < len(values):
        raise ModelError(f"{call.title} needs one input per name in 'xs' and 'zs'.")
    count = len(variables)
    given, named, result = present[:count], present[count:-1], present[-1]
    for value in (*given[: len(xs)], result):
        if not value.dtype.is_float:
            raise UnsupportedError(f"'{value.name}' is {value.type}, which is not floating point")
    if influences(scope.nodes, result).isdisjoint(named[: len(xs)]):
        raise UnsupportedError(f"'{y}' does not depend on {', '.join(xs)} in the same graph")
    check_captures(scope.nodes, named)
    if given == named:
        nodes = _before(scope.nodes, result, named)
    else:
        build = Builder(context.value_names, call.name, nodes=scope.nodes)
        # One input may stand for several values, or also be read itself.
        given = [build.add(Identity(), v) for v in given]
        with NodeErrorContext(call.title):
            nodes, result = _instantiate(
                scope.nodes, dict(zip(named, given, strict=True)), result, build
            )
    more, gradients = add_gradients(nodes, result, given[: len(xs)], context.value_names)
    scope.nodes += more
    if len(scope.nodes) > (limit := env_vars.NODE_LIMIT.get()):
        raise ModelError(
            f"{call.title}: the graph has {len(scope.nodes)} nodes with its gradients, and "
            f"CLRT_NODE_LIMIT allows {limit}; raise it if this is intended."
        )
    build = Builder(context.value_names, nodes=scope.nodes)
    outputs: list[Value | None] = []
    for name, gradient in zip(call.outputs, gradients, strict=False):
        if not name:
            outputs.append(None)
            continue
        node = context.value_names.unique(f"{call.name}/{name}")
        outputs += build.emit(Identity(), [gradient], node, [name], [gradient.type]).outputs
    return outputs


def _instantiate(
    nodes: Sequence[Node], inputs: Mapping[Value, Value], y: Value, build: Builder
) -> tuple[list[Node], Value]:
    """Copies the nodes between some values and `y`, with other values in their place.

    Args:
        nodes: Nodes of the graph in topological order.
        inputs: Replacement by value.
        y: Last value.
        build: Adds the copies.

    Returns:
        The copies, and the value that corresponds to `y`.
    """
    copies = dict(inputs)
    start = len(build.nodes)
    for node in _before(nodes, y, inputs):
        values = [v if v is None else copies.get(v, v) for v in node.inputs]
        if values != node.inputs:
            copies.update(zip(node.outputs, build.add_all(node.op, *values), strict=False))
    return build.nodes[start:], copies.get(y, y)


def _before(nodes: Sequence[Node], y: Value, ends: Iterable[Value]) -> list[Node]:
    """Returns the nodes that `y` depends on other than through `ends`, in order."""
    stops, live = set(ends), {y}
    kept = []
    for node in reversed(nodes):
        if any(v in live and v not in stops for v in node.outputs):
            live.update(v for v in node.inputs if v is not None)
            kept.append(node)
    return kept[::-1]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")

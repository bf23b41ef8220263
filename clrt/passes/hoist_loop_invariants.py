"""Takes what never changes out of what a loop carries."""

from __future__ import annotations

from dataclasses import replace

from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.control.control_flow import Loop
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import produced_by


class CaptureInvariants(Pass):
    """A value that each turn of a Loop hands on as it came is captured instead.

    TensorFlow's loops carry their weights along, as they do everything else that they read.
    """

    name = "capture_invariants"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Loop)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        found = _invariants(node.op) if isinstance(node.op, Loop) else []
        return Match(view, node, payload=found) if found else None

    def rewrite(self, match: Match) -> Patch:
        build, node, places = match.builder(self.name), match.root, match.payload
        assert isinstance(node.op, Loop)
        body = node.op.body.copy()
        moved = [body.inputs[2 + i] for i in places]
        body.inputs = [v for v in body.inputs if v not in moved] + moved
        kept = [k for k in range(len(body.outputs)) if k - 1 not in places]
        body.outputs = [body.outputs[k] for k in kept]
        body.output_names = [body.output_names[k] for k in kept]
        starts = {i: node.arg(2 + i) for i in places}
        inputs = [v for k, v in enumerate(node.inputs, -2) if k not in places]
        results: dict[Value, Value] = {node.outputs[i]: v for i, v in starts.items()}
        others = [v for k, v in enumerate(node.outputs) if k not in places]
        if others:
            captures = node.op.captures + len(places)
            build.add(replace(node.op, body=body, captures=captures), *inputs, *starts.values())
            results.update(zip(others, build.nodes[0].outputs, strict=True))
        return build.patch(results)


def _invariants(loop: Loop) -> list[int]:
    """Which of the values that a loop carries leave each turn as they came."""
    pairs = zip(loop.body.inputs[2:], loop.body.outputs[1 : 1 + loop.carried], strict=False)
    return [k for k, (before, after) in enumerate(pairs) if _origin(after) is before]


def _origin(value: Value) -> Value:
    """The value that one is a copy of."""
    while (node := produced_by(value, "Identity")) is not None:
        value = node.arg(0)
    return value

"""Loop-carried values that never change -> captured values."""

from __future__ import annotations

from dataclasses import replace

from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.control.control_flow import Loop
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import produced_by


class HoistLoopInvariants(Pass):
    """Loop-carried value that each iteration returns unchanged -> value captured by the body.

    Loops exported from TensorFlow carry all values that the body reads, including weights.
    """

    name = "capture_invariants"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Loop)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        invariants = _invariants(node.op) if isinstance(node.op, Loop) else []
        return Match(view, node, payload=invariants) if invariants else None

    def rewrite(self, match: Match) -> Patch:
        build, node, invariants = match.builder(self.name), match.root, match.payload
        op = node.op_as(Loop)
        body = op.body.copy()
        captured = [body.inputs[2 + i] for i in invariants]
        body.inputs = [v for v in body.inputs if v not in captured] + captured
        kept_outputs = [k for k in range(len(body.outputs)) if k - 1 not in invariants]
        body.outputs = [body.outputs[k] for k in kept_outputs]
        body.output_names = [body.output_names[k] for k in kept_outputs]
        initial = {i: node.arg(2 + i) for i in invariants}
        inputs = [v for k, v in enumerate(node.inputs, -2) if k not in invariants]
        results: dict[Value, Value] = {node.outputs[i]: v for i, v in initial.items()}
        others = [v for k, v in enumerate(node.outputs) if k not in invariants]
        if others:
            captures = op.captures + len(invariants)
            build.add(replace(op, body=body, captures=captures), *inputs, *initial.values())
            results.update(zip(others, build.nodes[0].outputs, strict=True))
        return build.patch(results)


def _invariants(loop: Loop) -> list[int]:
    """Returns the indices of a Loop's carried values that its body returns unchanged."""
    pairs = zip(loop.body.inputs[2:], loop.body.outputs[1 : 1 + loop.carried], strict=False)
    return [k for k, (before, after) in enumerate(pairs) if _origin(after) is before]


def _origin(value: Value) -> Value:
    """Returns the value that a chain of Identity nodes copies to `value`, else `value` itself."""
    while (node := produced_by(value, "Identity")) is not None:
        value = node.arg(0)
    return value

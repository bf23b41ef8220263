"""Pad of zeros before a convolution -> folded into its `pads`."""

from __future__ import annotations

from dataclasses import replace

from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.conv.conv import FloatConvolution
from clrt.ops.movement.pad import Pad
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import produced_by, scalar


class FoldPad(Pass):
    """Conv(Pad(x)), if Pad adds zeros along spatial axes only -> Conv(x) with larger `pads`."""

    name = "fold_pad"
    required_op_classes = (Pad,)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, FloatConvolution)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if not isinstance(node.op, FloatConvolution):
            return None
        pad = produced_by(node.arg(0), "Pad")
        if pad is None:
            return None
        op = pad.op_as(Pad)
        x, pads, value, axes = pad.arg(0), pad.arg(1).numbers, pad.input(2), pad.input(3)
        if op.mode != "constant" or (value is not None and scalar(value) != 0):
            return Miss("the padding is not constant 0", node)
        if x.shape is None or pads is None or (axes is not None and axes.numbers is None):
            return Miss("the padding is computed", node)
        if node.op.auto_pad not in ("NOTSET", "VALID"):
            return Miss(f"the convolution pads {node.op.auto_pad}", node)
        pad_axes = None if axes is None or axes.numbers is None else [int(a) for a in axes.numbers]
        begins, ends = op.full_pads(len(x.shape), [int(p) for p in pads], pad_axes)
        if any((*begins[:2], *ends[:2])) or min(*begins, *ends) < 0:
            return Miss("the padding is not along spatial axes alone, or crops", node)
        added = (*begins[2:], *ends[2:])
        conv_pads = (
            node.op.pads if node.op.pads and node.op.auto_pad == "NOTSET" else (0,) * len(added)
        )
        return Match(
            view,
            node,
            traversed_nodes=[pad],
            payload=tuple(a + b for a, b in zip(conv_pads, added, strict=True)),
        )

    def rewrite(self, match: Match) -> Patch:
        node, build = match.root, match.builder(self.name)
        assert match.traversed_nodes
        op = replace(node.op_as(FloatConvolution), pads=match.payload, auto_pad="NOTSET")
        value = build.add(op, match.traversed_nodes[0].arg(0), *node.inputs[1:])
        return build.patch({node.output: value})

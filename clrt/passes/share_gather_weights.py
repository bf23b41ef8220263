"""QuantizedGather -> QuantizedGather with exact scales, to share its table with products."""

from __future__ import annotations

from dataclasses import replace

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.matmul.quantized_gather import QuantizedGather
from clrt.passes.driver import GraphView, Match, Pass


class ShareGatherWeights(Pass):
    """QuantizedGather -> QuantizedGather(exact=1), whose table has the layout of float32 products.

    If a matrix product reads the same table as its weight, the device then stores the table once.
    """

    name = "keep_scales"

    def is_for(self, caps: DeviceCaps) -> bool:
        return not caps.is_cpu

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, QuantizedGather)

    def match(self, view: GraphView, node: Node) -> Match | None:
        return None if node.op_as(QuantizedGather).exact else Match(view, node)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        value = build.add(replace(node.op_as(QuantizedGather), exact=1), *node.inputs)
        return build.patch({node.output: value})

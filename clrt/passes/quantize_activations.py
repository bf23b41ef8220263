"""Products with quantized weights -> A quantized to int8, for devices with int8 dot products."""

from __future__ import annotations

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.matmul.quantized_product import QuantizedProduct
from clrt.passes.driver import GraphView, Match, Miss, Pass


class QuantizeActivations(Pass):
    """Product with quantized B -> the same op with rows of A quantized to int8 (`a_bits`).

    int8 dot products multiply four elements at a time and read quantized weights directly.
    A QuantizedMatMul (GGUF models) is always rewritten. A MatMulNBits (ONNX models) is rewritten if
    its `accuracy_level` is 4, its weights have 4 or 8 bits, and kernels support its block size.
    """

    name = "round_activations"

    def is_for(self, caps: DeviceCaps) -> bool:
        return bool(caps.int8_dot_isa)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, QuantizedProduct)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        op = node.op_as(QuantizedProduct)
        if op.a_bits:
            return None
        reason = op.reject_rounding()
        return Match(view, node) if reason is None else Miss(reason, node)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        value = build.add(node.op_as(QuantizedProduct).with_rounding(), *node.inputs)
        return build.patch({node.output: value})

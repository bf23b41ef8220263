"""Products with quantized weights -> A quantized to int8, for devices with int8 dot products."""

from __future__ import annotations

from dataclasses import replace

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.matmul.matmul_nbits import DOT_BLOCK, MatMulNBits
from clrt.ops.matmul.quantized_matmul import ROUNDED_BITS, QuantizedMatMul
from clrt.passes.driver import GraphView, Match, Miss, Pass

# Value of MatMulNBits' accuracy_level that allows int8 A.
_INT8 = 4


class QuantizeActivations(Pass):
    """QuantizedMatMul or MatMulNBits -> the same op with rows of A quantized to int8 (`a_bits`).

    int8 dot products multiply four elements at a time and read quantized weights directly.
    QuantizedMatMul (GGUF models) always allows it; MatMulNBits (ONNX models) if its
    `accuracy_level` is 4, for weights of 4 or 8 bits.
    """

    name = "round_activations"

    def is_for(self, caps: DeviceCaps) -> bool:
        return bool(caps.int8_dot_isa)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (MatMulNBits, QuantizedMatMul))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        op = node.op
        assert isinstance(op, (MatMulNBits, QuantizedMatMul))
        if op.a_bits:
            return None
        if isinstance(op, MatMulNBits):
            if op.accuracy_level != _INT8:
                return Miss("accuracy_level does not allow A in 8 bits", node)
            if op.bits not in (4, 8) or op.block_size % DOT_BLOCK:
                return Miss(f"for 4 or 8 bits, and blocks of {DOT_BLOCK} or multiples", node)
        return Match(view, node)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        assert isinstance(node.op, (MatMulNBits, QuantizedMatMul))
        value = build.add(replace(node.op, a_bits=ROUNDED_BITS), *node.inputs)
        return build.patch({node.output: value})

"""float32 weights that hold numbers of 16 bits -> these: half the memory, and the same result."""

from __future__ import annotations

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import Array, IrOp, StoredElements
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.shrink_weights import MIN_ELEMS


class NarrowWeights(Pass):
    """A product with a constant that float16 or bfloat16 holds without loss -> with that.

    So are the weights of a model in 16 bits, once its arithmetic is in float32 (`widen_floats`).
    """

    name = "narrow_weights"

    def wants(self, op: type[IrOp]) -> bool:
        return issubclass(op, FusedMatMul)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if not isinstance(node.op, FusedMatMul) or node.arg(0).dtype is not DType.FLOAT32:
            return None
        weight = node.arg(1)
        # A compiled model has the precision that it was made with.
        fixed = isinstance(weight.type.known, StoredElements)
        numbers = weight.numbers if weight.is_constant and not fixed else None
        if numbers is None or weight.dtype is not DType.FLOAT32 or numbers.size < MIN_ELEMS:
            return None
        if weight not in view.memo:
            view.memo[weight] = _narrowest(numbers)
        return None if view.memo[weight] is None else Match(view, node)

    def rewrite(self, match: Match) -> Patch:
        build, node, memo = match.builder(self.name), match.root, match.view.memo
        weight = node.arg(1)
        if (narrow := memo.get((self.name, weight))) is None:
            assert weight.numbers is not None
            narrow = build.constant(weight.numbers.astype(memo[weight].numpy))
            memo[self.name, weight] = narrow
        assert isinstance(narrow, Value)
        value = build.add(node.op, node.arg(0), narrow, *node.inputs[2:])
        return build.patch({node.output: value})


def _narrowest(numbers: Array) -> DType | None:
    """The dtype of 16 bits that holds the numbers; most are told by the first of them."""
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        if _holds(dtype, numbers.reshape(-1)[:MIN_ELEMS]) and _holds(dtype, numbers):
            return dtype
    return None


def _holds(dtype: DType, numbers: Array) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.all(numbers.astype(dtype.numpy).astype(np.float32) == numbers))

"""float32 weights that hold numbers of 16 bits -> these: half the memory, and the same result."""

from __future__ import annotations

from math import prod

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.mmap_arrays import is_mapped
from clrt.ir.op import Array, ConcatenatedRows, IrOp
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.passes.compress_weights import MIN_ELEMS
from clrt.passes.driver import GraphView, Match, Miss, Pass


class NarrowWeights(Pass):
    """A product with a constant that float16 or bfloat16 holds without loss -> with that.

    So are the weights of a model in 16 bits, once its arithmetic is in float32 (`widen_floats`).
    """

    name = "narrow_weights"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, FusedMatMul)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if not isinstance(node.op, FusedMatMul) or node.arg(0).dtype is not DType.FLOAT32:
            return None
        weight = node.arg(1)
        known = weight.type.known_elements if weight.is_constant else None
        # A compiled model has the precision that it was made with.
        if isinstance(known, np.ndarray):
            known = ConcatenatedRows((known,), known.dtype)
        if not isinstance(known, ConcatenatedRows) or weight.dtype is not DType.FLOAT32:
            return None
        if prod(known.shape) < MIN_ELEMS:
            return None
        if weight not in view.memo:
            view.memo[weight] = _narrowest(known)
        return None if view.memo[weight] is None else Match(view, node)

    def rewrite(self, match: Match) -> Patch:
        build, node, memo = match.builder(self.name), match.root, match.view.memo
        weight = node.arg(1)
        if (narrow := memo.get((self.name, weight))) is None:
            narrow = build.constant(memo[weight])
            memo[self.name, weight] = narrow
        assert isinstance(narrow, Value)
        value = build.add(node.op, node.arg(0), narrow, *node.inputs[2:])
        return build.patch({node.output: value})


def _narrowest(weight: ConcatenatedRows) -> Array | ConcatenatedRows | None:
    """The weight in 16 bits that hold its numbers; most are told by the first of them.

    What lies in a mapped file stays there.
    """
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        starts = [part.reshape(-1)[:MIN_ELEMS] for part in weight.parts]
        if all(_holds(dtype, part) for part in (*starts, *weight.parts)):
            narrow = ConcatenatedRows(weight.parts, dtype.numpy)
            return narrow if all(map(is_mapped, weight.parts)) else narrow.elements
    return None


def _holds(dtype: DType, numbers: Array) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.all(numbers.astype(dtype.numpy).astype(np.float32) == numbers))

"""float32 weights -> 16-bit floats, if these represent them exactly: half the memory."""

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


class DemoteExactWeights(Pass):
    """Product with a float32 constant B -> product with a float16 or bfloat16 B of equal elements.

    Applies if every element is representable in 16 bits, as in 16-bit models whose weights
    `PromoteToFloat32` converted to float32. Weights of fewer than `MIN_ELEMS` elements stay.
    """

    name = "narrow_weights"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, FusedMatMul)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if not isinstance(node.op, FusedMatMul) or node.arg(0).dtype is not DType.FLOAT32:
            return None
        weight = node.arg(1)
        known = weight.type.known_elements if weight.is_constant else None
        # Other forms, such as packed weights of compiled models, keep their precision.
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
        if (constant := memo.get((self.name, weight))) is None:
            constant = build.constant(memo[weight])
            memo[self.name, weight] = constant
        assert isinstance(constant, Value)
        value = build.add(node.op, node.arg(0), constant, *node.inputs[2:])
        return build.patch({node.output: value})


def _narrowest(weight: ConcatenatedRows) -> Array | ConcatenatedRows | None:
    """Returns a weight as float16, else as bfloat16, whichever represents it exactly; else None.

    Checks the first elements before all others, which rejects most weights early. A weight in a
    memory-mapped file is returned as ConcatenatedRows, which converts when it is read.
    """
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        starts = [part.reshape(-1)[:MIN_ELEMS] for part in weight.parts]
        if all(_holds(dtype, part) for part in (*starts, *weight.parts)):
            converted = ConcatenatedRows(weight.parts, dtype.numpy)
            return converted if all(map(is_mapped, weight.parts)) else converted.elements
    return None


def _holds(dtype: DType, numbers: Array) -> bool:
    """Whether a float dtype represents all elements of a float32 array exactly."""
    with np.errstate(over="ignore"):
        return bool(np.all(numbers.astype(dtype.numpy).astype(np.float32) == numbers))

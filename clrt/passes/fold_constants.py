"""Constant folding: evaluates nodes whose inputs are all constants."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from clrt.errors import ClrtError
from clrt.ir.builder import Builder
from clrt.ir.dims import Expr
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.node_errors import NodeErrorContext
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Op
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.fuse_fake_quantize import RoundedProduct, rounded_product
from clrt.passes.matching import op_name
from clrt.util.host_limits import MAX_STEPWISE_BYTES

# Maximum size of a folded result in bytes; larger ones are folded only if no larger than their
# inputs.
MAX_FOLDED_BYTES = 16 << 20
_MATMULS = ("MatMul", "Gemm", "clrt.FusedMatMul")


class FoldConstants(Pass):
    """Node whose inputs are all constant -> constants, computed by the op's NumPy reference.

    Not folded are results of more than 16 MiB that are larger than the inputs, results past the
    fold budget, and Transposes of weights of matrix products, which `canonicalize_matmul` absorbs.
    Neither are dequantized 4-bit weights, nodes that the host drives, such as loops, and large
    inputs of ops with a slow reference.

    Args:
        dequantize: Whether DequantizeLinear of weights of more than 4 bits is folded.
        products: Whether DequantizeLinear is also folded if it is an operand of an int8 product
            that FuseRoundedMatmul matches.
    """

    name = "fold_constants"
    is_local = True

    def __init__(self, dequantize: bool = True, products: bool = False) -> None:
        self._dequantize = dequantize
        self._products = products

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        for value in node.inputs:
            if value is not None and not (value.is_constant and value.has_numbers):
                return None
        op = node.op_as(Op)
        if not node.outputs:
            return None
        if op.host_traits.host_driven or any(v.type.on_host for v in node.outputs):
            return None  # loops may be long, and sequences cannot be constants
        if op_name(node) == "Transpose" and _feeds_products(view, node):
            return None
        dequantizes = op_name(node) == "DequantizeLinear"
        if dequantizes and not self._dequantize:
            return Miss("quantized weights are kept (keep_quantized)", node)
        if dequantizes and node.arg(0).dtype in (DType.INT4, DType.UINT4):
            return Miss(
                "a 4-bit weight stays quantized: as float32 it takes 8 times the memory", node
            )
        if dequantizes and not self._products and _feeds_rounded(view, node):
            return Miss("an int8 product reads it", node)
        inputs = {v for v in node.inputs if v is not None}
        nbytes = sum(v.nbytes for v in inputs)
        if op.host_traits.has_slow_reference and nbytes > MAX_STEPWISE_BYTES:
            return Miss("its NumPy reference is slow for inputs of this size", node)
        limit = max(MAX_FOLDED_BYTES, nbytes)
        freed_bytes = sum(v.nbytes for v in inputs if view.only_user(v) is not None)
        static = all(v.type.is_static for v in node.outputs)
        output_bytes = sum(v.nbytes for v in node.outputs) if static else 0
        work = sum(v.nbytes for v in inputs)
        work += op.flops(node.input_types, [v.type for v in node.outputs]) if static else 0
        if output_bytes > limit:
            return Miss("the result is larger than 16 MiB and than its inputs", node)
        if not view.budget.has(output_bytes - freed_bytes, work):
            return Miss("the budget of constant folding is used up (CLRT_FOLD_LIMIT)", node)
        arrays = evaluate_node(node)
        if isinstance(arrays, Miss):
            return arrays
        result_bytes = sum(a.nbytes for a in arrays)
        if result_bytes > limit:
            return Miss("the result is larger than 16 MiB and than its inputs", node)
        if not view.budget.has(result_bytes - freed_bytes, work):
            return Miss("the budget of constant folding is used up (CLRT_FOLD_LIMIT)", node)
        return Match(view, node, payload=(arrays, result_bytes - freed_bytes, work))

    def rewrite(self, match: Match) -> Patch:
        build = match.builder(self.name)
        replace = {}
        arrays, grown, work = match.payload
        match.view.budget.take(grown, work)
        for value, array in zip(match.root.outputs, arrays, strict=True):
            replace[value] = _constant(build, value, array)
        return build.patch(replace)


class FoldShapeData(Pass):
    """Value whose elements type inference knows, as numbers or dims of graph inputs -> constant.

    The nodes that computed the value (Shape, Gather, Concat, …) are then dead. Elements that are
    symbolic dims become numbers when the graph is specialised. Values with data-dependent dims are
    not folded.
    """

    name = "fold_shape_data"
    is_local = True

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        for value in node.outputs:
            if value.type.known_elements is None:
                return None
        if not node.outputs:
            return None
        bound = view.memo.get("bound")
        if bound is None:
            inputs = [d for v in view.graph.inputs for d in v.shape or ()]
            bound = view.memo["bound"] = _symbols(inputs)
        data = [v.type.data for v in node.outputs if v.type.data is not None]
        if any(not _symbols(a.flat) <= bound for a in data if a.dtype == object):
            return None
        return Match(view, node)

    def rewrite(self, match: Match) -> Patch:
        build = match.builder(self.name)
        names = match.view.names
        replace = {
            v: Value(names.fresh(match.root.name, self.name), v.type) for v in match.root.outputs
        }
        return build.patch(replace)


def _symbols(dims: Iterable[object]) -> frozenset[str]:
    """Returns the names of all symbols in dims; elements that are not expressions have none."""
    return frozenset().union(*(d.symbols for d in dims if isinstance(d, Expr)))


def evaluate_node(node: Node) -> list[Array] | Miss:
    """Computes the outputs of a node of constant inputs in NumPy; returns a Miss if that fails."""
    inputs = [None if v is None else v.numbers for v in node.inputs]
    try:
        with NodeErrorContext(node):  # the model may be invalid, which is reported when it runs
            outputs = node.op_as(Op).run_reference(*inputs)
            # Trailing outputs may be omitted by the node.
            return [np.asarray(a) for _, a in zip(node.outputs, outputs, strict=False)]
    except (ClrtError, NotImplementedError) as error:
        return Miss(f"its reference cannot run: {error}", node)


def _constant(build: Builder, value: Value, array: Array) -> Value:
    data = np.ascontiguousarray(array, value.dtype.numpy).reshape(array.shape)
    constant = build.constant(data)
    constant.type = TensorType(value.dtype, data.shape, data)
    return constant


def _feeds_rounded(view: GraphView, node: Node) -> bool:
    """Whether a matrix product that FuseRoundedMatmul matches reads a dequantized weight.

    Args:
        view: Graph of the node.
        node: DequantizeLinear that computes the weight.
    """
    for user in view.users(node.output):
        users = view.users(user.output) if op_name(user) == "Transpose" else [user]
        if any(isinstance(rounded_product(u), RoundedProduct) for u in users):
            return True
    return False


def _feeds_products(view: GraphView, node: Node) -> bool:
    """Whether a node's output, of rank 2 or more, is read by matrix products only."""
    users = view.users(node.output)
    matrix = node.output.type.rank is not None and node.output.type.rank >= 2
    return matrix and bool(users) and all(op_name(u) in _MATMULS for u in users)

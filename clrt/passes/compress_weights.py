"""Lossy weight compression: float16 or bfloat16 storage, or int8 and int4 in blocks with scales.

Only storage shrinks: kernels read the compressed weights and compute in float32. The pass is not
part of `load`, since results change; `clrt-convert` runs it after the optimiser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from math import prod

import ml_dtypes
import numpy as np

from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Patch, Value
from clrt.ir.op import Array
from clrt.ops.base import Op
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.matmul.matmul_nbits import MatMulNBits
from clrt.ops.movement.gather import Gather
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.table import Mul
from clrt.passes.block_quantization import round_blocks
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.util.fast_dataclass import dataclass

# Minimum number of elements of a constant to compress; smaller ones (biases, scales) save nothing.
MIN_ELEMS = 4096
# Fraction of all elements of product weights that are stored in int8 instead of int4.
_INT8_FRACTION = 0.25
# Elements along K per block, and bits per element. A block has a float32 scale and a zero point, so
# that a weight takes 8.3 and 6.3 bits.
_BLOCKS = {DType.INT8: (128, 8), DType.INT4: (16, 4)}


@dataclass(frozen=True)
class WeightCompression:
    """Size and error of one compressed weight.

    Attributes:
        name: Name of the weight.
        shape: Shape of the weight.
        dtype: Name of the dtype in which the compressed weight is stored.
        nbytes_before: Uncompressed size in bytes.
        nbytes: Compressed size in bytes, including scales and zero points.
        error: Root mean square of the elements' changes, divided by the root mean square of the
            elements.
        largest: Maximum absolute change, divided by the maximum absolute element.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes_before: int
    nbytes: int
    error: float
    largest: float


@dataclass(eq=False)
class CompressWeights(Pass):
    """float32 constants of at least `MIN_ELEMS` elements -> constants of fewer bits.

    Attributes:
        to: Target dtype: float16, bfloat16, int8 or int4. Integers apply to weights of products and
            Gather only; Gather gets int8 for int4 too.
        wider: Weights that become int8 even if `to` is int4, as `most_changed` returns them.
        moments: Maps the weight `[K, N]` of a product A @ B to the `[K, K]` sum of outer products
            of the rows of A, which weighs rounding errors (`round_blocks`). Weights without moments
            are rounded to nearest.
        shrunk: Maps each compressed weight to its size and error; filled by the pass.
        overflows: Names of weights left unchanged, since elements exceed the range of a 16-bit
            `to`; filled by the pass.
    """

    to: DType
    wider: frozenset[Value] = frozenset()
    moments: Mapping[Value, Array] = field(default_factory=dict)
    shrunk: dict[Value, WeightCompression] = field(default_factory=dict)
    overflows: list[str] = field(default_factory=list)
    # New constants by weight and role, so that nodes that share a weight share its compressed form.
    _constants: dict[tuple[Value, str], Value] = field(default_factory=dict)

    name = "shrink_weights"

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        index = _weight_index(node)
        if index is None:
            return None
        weight = node.arg(index)
        numbers = weight.numbers
        if weight in self._constants.values():
            return None
        assert numbers is not None
        if self.to in _BLOCKS:
            reason = _unquantisable(node, weight)
            if reason is not None:
                return Miss(reason, node)
        elif np.abs(numbers).max() > float(ml_dtypes.finfo(self.to.numpy).max):
            if weight.name not in self.overflows:
                self.overflows.append(weight.name)
            return Miss(f"'{weight.name}' holds numbers past {self.to}", node)
        return Match(view, node, payload=index)

    def rewrite(self, match: Match) -> Patch:
        node, index, build = match.root, match.payload, match.builder(self.name)
        assert isinstance(index, int)
        compress = self._quantised if self.to in _BLOCKS else self._narrowed
        return build.patch({node.output: compress(build, node, index)})

    def _narrowed(self, build: Builder, node: Node, index: int) -> Value:
        """Builds a node whose weight is stored in a 16-bit float dtype; returns its output.

        Args:
            index: Index of the input that is the weight.
        """
        weight, op = node.arg(index), node.op
        assert weight.numbers is not None
        small = weight.numbers.astype(self.to.numpy)
        constant = self._constant(build, weight, "", small)
        self._note(weight, self.to, small.astype(np.float32), small.nbytes)
        inputs = list(node.inputs)
        if isinstance(op, (MatMul, FusedMatMul)) and index == 1:
            product = FusedMatMul() if isinstance(op, MatMul) else op
            inputs[index] = constant
            return build.add(product, *inputs)
        if isinstance(op, Gather):
            return build.add(Cast(to=DType.FLOAT32), build.add(op, constant, *inputs[1:]))
        inputs[index] = build.add(Cast(to=DType.FLOAT32), constant)
        return build.add(op, *inputs)

    def _quantised(self, build: Builder, node: Node, index: int) -> Value:
        """Builds a node whose weight is stored in int8 or int4; returns its output.

        Args:
            index: Index of the input that is the weight.
        """
        weight, op = node.arg(index), node.op
        assert weight.numbers is not None
        if isinstance(op, Gather):
            scales = np.abs(weight.numbers).max(axis=1, keepdims=True) / np.float32(127)
            levels = np.rint(weight.numbers / np.where(scales == 0, 1, scales)).astype(np.int8)
            self._note(weight, DType.INT8, levels * scales, levels.nbytes + scales.nbytes)
            rows = [
                build.add(op, self._constant(build, weight, kind, array), node.arg(1))
                for kind, array in (("levels", levels), ("scales", scales))
            ]
            return build.add(Mul(), build.add(Cast(to=DType.FLOAT32), rows[0]), rows[1])
        rows_n = _rows(node)
        to = DType.INT8 if weight in self.wider else self.to
        block, bits = _BLOCKS[to]
        rounded = round_blocks(rows_n, block, bits, self.moments.get(weight))
        product = MatMulNBits(rows_n.shape[1], rows_n.shape[0], bits, block)
        arrays = {
            "blocks": product.packed(rounded.levels),
            "block_scales": rounded.scales,
            "block_zeros": product.packed_zeros(rounded.zeros),
        }
        restored = rounded.restored()
        size = sum(a.nbytes for a in arrays.values())
        self._note(weight, to, restored if _by_rows(node) else restored.T, size)
        constants = [self._constant(build, weight, k, a) for k, a in arrays.items()]
        steps = op.steps if isinstance(op, FusedMatMul) else ()
        gap = [None] * (product.num_fixed_inputs - 1 - len(constants)) if steps else []
        return build.add(
            replace(product, steps=steps), node.arg(0), *constants, *gap, *node.inputs[2:]
        )

    def _constant(self, build: Builder, weight: Value, kind: str, array: Array) -> Value:
        key = (weight, kind)
        if key not in self._constants:
            self._constants[key] = build.constant(array)
        return self._constants[key]

    def _note(self, weight: Value, to: DType, restored: Array, nbytes: int) -> None:
        """Records size and error of a compressed weight in `shrunk`.

        Args:
            weight: The uncompressed weight.
            to: Dtype in which it is stored.
            restored: Its elements after compression, as float32.
            nbytes: Compressed size in bytes.
        """
        numbers = weight.numbers
        assert numbers is not None
        change = restored - numbers
        size = float(np.sqrt(np.mean(np.square(numbers, dtype=np.float64)))) or 1.0
        self.shrunk[weight] = WeightCompression(
            weight.name,
            weight.dims,
            str(to),
            numbers.nbytes,
            nbytes,
            float(np.sqrt(np.mean(np.square(change, dtype=np.float64)))) / size,
            float(np.abs(change).max() / (np.abs(numbers).max() or 1.0)),
        )


def quantisable_products(graph: Graph) -> list[Node]:
    """Returns the nodes of a graph whose weight B can be quantized: MatMul and FusedMatMul."""
    return [n for n in graph.nodes if _weight_index(n) == 1 and not _unquantisable(n, n.arg(1))]


def most_changed(graph: Graph, moments: Mapping[Value, Array]) -> frozenset[Value]:
    """Returns the weights of matrix products that int4 quantization changes most.

    The returned weights have at most a quarter of the elements of all weights of matrix products.

    Args:
        graph: Graph with float32 weights.
        moments: Maps the weight `[K, N]` of a product A @ B to the `[K, K]` sum of outer products
            of the rows of A. A weight with moments is ranked by the relative change of its product,
            a weight without moments by its own relative change.
    """
    changes: dict[Value, float] = {}
    for node in quantisable_products(graph):
        rows = _rows(node)
        rounded = round_blocks(rows, *_BLOCKS[DType.INT4], search=False)
        change = rounded.restored() - rows
        moment = moments.get(node.arg(1))
        norms = [np.vdot(x, x if moment is None else x @ moment) for x in (change, rows)]
        changes[node.arg(1)] = float(norms[0] / norms[1]) if norms[1] else 0.0
    remaining = _INT8_FRACTION * sum(prod(w.dims) for w in changes)
    wider = []
    for weight in sorted(changes, key=lambda w: -changes[w]):
        if prod(weight.dims) <= remaining:
            remaining -= prod(weight.dims)
            wider.append(weight)
    return frozenset(wider)


def _rows(node: Node) -> Array:
    """Returns the elements of the constant B of a matrix product as `[columns, summed axis]`."""
    numbers = node.arg(1).numbers
    assert numbers is not None
    return numbers if _by_rows(node) else numbers.T


def _by_rows(node: Node) -> bool:
    """Whether the B of a matrix product is stored transposed (trans_b)."""
    return isinstance(node.op, FusedMatMul) and bool(node.op.trans_b)


def _weight_index(node: Node) -> int | None:
    """Returns the index of a node's first float32 constant of at least `MIN_ELEMS` elements.

    Returns None if there is none, if all inputs are constant, or if the node has several outputs.
    Inputs whose elements planning needs do not count.
    """
    op = node.op_as(Op)
    if all(v is None or v.is_constant for v in node.inputs) or len(node.outputs) != 1:
        return None
    for index, value in enumerate(node.inputs):
        if value is None or not value.is_constant or value.dtype is not DType.FLOAT32:
            continue
        if value.numbers is None or value.numbers.size < MIN_ELEMS:
            continue
        if index not in op.input_traits.plan_time:
            return index
    return None


def _unquantisable(node: Node, weight: Value) -> str | None:
    """Returns why a node's weight cannot be quantized to integers; None if it can."""
    if len(weight.dims) != 2:
        return f"'{weight.name}' {weight.type} is not a matrix"
    if isinstance(node.op, Gather):
        return None if node.op.axis == 0 else "it gathers along another axis than the first"
    if not isinstance(node.op, (MatMul, FusedMatMul)) or node.arg(1) is not weight:
        return "only products and Gather support integer weights"
    if isinstance(node.op, FusedMatMul) and node.op.trans_a:
        return "its A is transposed"
    rank = node.arg(0).type.rank
    return None if rank is not None and rank >= 2 else "its A is a vector, or of unknown rank"

"""Ops for support vector machines besides products: squared distances and coupled probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.dims import provably_different
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.variant import Lowering, Variant, reject_float64
from clrt.ops.base import Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import fresh_dims
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    dtype = node.arg(0).dtype
    return None if dtype is DType.FLOAT32 else f"no kernel for {dtype}"


def _no_distance(node: Node, caps: DeviceCaps) -> str | None:
    if node.arg(0).dtype is DType.FLOAT64:
        return reject_float64(node, caps)
    return _reject(node, caps)


def _distances(node: Node, ctx: Lowering) -> list[Launch]:
    x, vectors = node.arg(0), node.arg(1)
    (rows, features), count = x.dims, vectors.dims[0]
    kernel = KernelSpec.of("ml/svm.cl", "squared_distance", DATA_T=x.dtype.cl)
    sizes = dict(count=count, features=features)
    return [launch(kernel, (count, rows), x=x, vectors=vectors, y=node.output, **sizes)]


def _couple(node: Node, ctx: Lowering) -> list[Launch]:
    """Returns the launch that couples pairwise probabilities into one per class."""
    x, op = node.arg(0), node.op_as(CouplePairs)
    rows, k = x.dims[0], op.classes
    kernel = KernelSpec.of("ml/svm.cl", "couple_pairs")
    if not rows:
        return []
    scratch = ctx.scratch(rows * (k * k + k))
    return [launch(kernel, (rows,), x=x, y=node.output, scratch=scratch, rows=rows, k=k)]


@register
class SquaredDistance(Op):
    """Returns |x[i] - v[j]|^2 for each pair of a row of x and a vector, `[rows, vectors]`.

    Inputs: x `[rows, features]` and v `[vectors, features]`. The op subtracts before squaring,
    because expanding the square would suffer cancellation.
    """

    domain = "clrt"
    variants = (Variant("flat", _distances, _no_distance),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, vectors = need(inputs, 0, self), need(inputs, 1, self)
        if x.dtype is not vectors.dtype:
            raise ShapeError(f"SquaredDistance: {x} and {vectors} differ in dtype.")
        if x.shape is None or vectors.shape is None:
            return [TensorType(x.dtype, fresh_dims(2))]
        if len(x.shape) != 2 or len(vectors.shape) != 2:
            raise ShapeError(f"SquaredDistance: {x} and {vectors} must have rank 2.")
        if provably_different(x.shape[1], vectors.shape[1]):
            raise ShapeError(f"SquaredDistance: {x} and {vectors} differ along axis 1.")
        return [TensorType(x.dtype, (x.shape[0], vectors.shape[0]))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, vectors = inputs
        assert x is not None and vectors is not None
        wide = x.astype(np.float64)[:, None] - vectors.astype(np.float64)[None]
        return ((wide**2).sum(2).astype(x.dtype),)


@register
@dataclass(frozen=True)
class CouplePairs(Op):
    """Combines probabilities of pairs of classes into class probabilities `[rows, k]`.

    Input: `[rows, k (k - 1) / 2]`, one column per pair of classes i < j, in lexicographic order:
    the probability of class i if the class is i or j, clipped to 1e-7..1 - 1e-7. The iteration
    stops when the largest error is below 0.005 / k, or after max(100, k) passes.

    Attributes:
        classes: Number of classes k.

    Source: Wu, Lin and Weng, Probability estimates for multi-class classification by pairwise
    coupling (2004), method 2, as in libsvm.
    """

    classes: int = 2

    domain = "clrt"
    variants = (Variant("rows", _couple, _reject),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        pairs = self.classes * (self.classes - 1) // 2
        if x.shape is None:
            return [TensorType(x.dtype, (*fresh_dims(1), self.classes))]
        if len(x.shape) != 2 or provably_different(x.shape[1], pairs):
            raise ShapeError(f"CouplePairs: {x} is not [N, {pairs}].")
        return [TensorType(x.dtype, (x.shape[0], self.classes))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        rows = [self._row(row) for row in np.clip(x, np.float32(1e-7), np.float32(1 - 1e-7))]
        return (np.asarray(rows, x.dtype).reshape(len(x), self.classes),)

    def _row(self, pairs: Array) -> Any:
        """Returns the probabilities of the k classes, float64, for one row.

        Args:
            pairs: Probabilities of the row's pairs of classes, `[k (k - 1) / 2]`.
        """
        k = self.classes
        r = np.zeros((k, k), np.float64)
        r[np.triu_indices(k, 1)] = pairs
        r += np.tril(1 - r.T, -1)
        q = -r.T * r
        np.fill_diagonal(q, (r**2).sum(0))
        p = np.full(k, 1 / k)
        for _ in range(max(100, k)):
            qp = q @ p
            total = p @ qp
            if np.abs(qp - total).max() < 0.005 / k:
                break
            for t in range(k):
                step = (total - qp[t]) / q[t, t]
                p[t] += step
                total = (total + step * (step * q[t, t] + 2 * qp[t])) / (1 + step) ** 2
                qp = (qp + step * q[t]) / (1 + step)
                p /= 1 + step
        return p

"""clrt.DecisionTrees: aggregates leaf weights of decision trees, for ONNX's tree ensembles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import numpy as np

from clrt.errors import ModelError, ShapeError, reworded
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.variant import Lowering, Variant, reject_float64
from clrt.ops.base import Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import fresh_dim
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass

AVERAGE: Final = 0
SUM: Final = 1
MIN: Final = 2
MAX: Final = 3
# ONNX's names: AGGREGATES is indexed by AVERAGE ... MAX, and BRANCHES in the order of MODES.
Aggregate: TypeAlias = Literal[0, 1, 2, 3]
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
BRANCHES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
MODES = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
MISSING_IS_TRUE = 8


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, nodes, splits, roots, starts, entries, weights = (node.arg(i) for i in range(7))
    y, op = node.output, node.op_as(DecisionTrees)
    rows, trees, targets = x.dims[0], roots.dims[0], op.targets
    if not rows or not targets:
        return []
    types = {"DATA_T": x.dtype.cl, "STORAGE": x.dtype.storage, "REAL_T": x.dtype.compute}
    find = KernelSpec.of("ml/tree_ensemble.cl", "tree_leaves", **types)
    add = KernelSpec.of("ml/tree_ensemble.cl", "tree_targets", AGGREGATE=op.aggregate, **types)
    found = ctx.scratch(rows * trees, DType.INT32)
    sums = ctx.scratch(rows * targets, splits.dtype)
    walk = dict(x=x, nodes=nodes, splits=splits, roots=roots, found=found, features=x.dims[1])
    leaves = dict(found=found, starts=starts, entries=entries, weights=weights)
    return [
        launch(find, (trees, rows), trees=trees, **walk),
        launch(add, (rows,), y=y, sums=sums, rows=rows, trees=trees, targets=targets, **leaves),
    ]


def check_forest(tables: Sequence[Array], targets: int) -> None:
    """Checks that trees are well-formed, so that a traversal stays in range and ends.

    Args:
        tables: Inputs of `DecisionTrees` after x.
        targets: Number of targets.

    Raises:
        ModelError: Shapes do not match, a child or target is out of range, a feature is negative,
            or nodes form a cycle.
    """
    nodes, splits, roots, starts, entries, weights = tables
    ranks = [a.ndim for a in tables]
    if ranks != [2, 1, 1, 1, 1, 1] or nodes.shape != (len(splits), 4) or not len(starts):
        raise ModelError("its tables do not match.")
    ends = starts[0] == 0 and starts[-1] == len(entries) == len(weights)
    if not ends or (np.diff(starts) < 0).any():
        raise ModelError("its tables do not match.")
    children = np.concatenate([nodes[:, 2:].reshape(-1), roots])
    if children.size and not 1 - len(starts) <= children.min() <= children.max() < len(nodes):
        raise ModelError("a node has a child that does not exist.")
    if (nodes[:, :2] < 0).any() or (entries < 0).any() or (entries >= targets).any():
        raise ModelError("a feature or a target is outside its range.")
    level = np.unique(roots[roots >= 0])
    for _ in range(len(nodes) + 1):
        if not level.size:
            return
        below = nodes[level, 2:].reshape(-1)
        level = np.unique(below[below >= 0])
    raise ModelError("its nodes form a cycle.")


@register
@dataclass(frozen=True)
class DecisionTrees(Op):
    """Aggregates the weights that trees give each target (sum, mean, min or max).

    Output: `[rows, targets]` in x's dtype. Targets without weights are 0. Splits and weights are
    float32, or float64 like x. A child or root is the index of a node, or ~index of a leaf.

    Inputs:
        x: Floats `[rows, features]`.
        nodes: int32 `[nodes, 4]`: feature, mode (index into MODES, plus MISSING_IS_TRUE if NaN goes
            to the true child), true child, false child.
        splits: Thresholds `[nodes]`.
        roots: int32 `[trees]`.
        starts: int32 `[leaves + 1]`, the first entry of each leaf, then the number of entries.
        entries: int32 `[entries]`, targets.
        weights: `[entries]`, the weight that the leaf gives the entry's target.

    Attributes:
        targets: Number of targets.
        aggregate: AVERAGE, SUM, MIN or MAX.
    """

    targets: int = 1
    aggregate: Aggregate = SUM

    domain = "clrt"
    input_traits = InputTraits(plan_time=(1, 3, 4, 5))
    variants = (Variant("rows", _emit, reject_float64),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, *tables = (need(inputs, i, self) for i in range(7))
        real = DType.FLOAT64 if x.dtype is DType.FLOAT64 else DType.FLOAT32
        wanted = [DType.INT32, real, *(DType.INT32,) * 3, real]
        if not x.dtype.is_float or [t.dtype for t in tables] != wanted:
            raise ModelError(f"DecisionTrees: its tables are not of the types for x, {x}.")
        if x.shape is None:
            return [TensorType(x.dtype, (fresh_dim(), self.targets))]
        if len(x.shape) != 2:
            raise ShapeError(f"DecisionTrees: {x} has rank {len(x.shape)}; expected 2.")
        nodes, features = tables[0].numbers, x.shape[1]
        used = -1 if nodes is None else int(nodes[:, 0].max(initial=-1))
        if isinstance(features, int) and used >= features:
            raise ShapeError(f"DecisionTrees: the trees read feature {used}, which {x} lacks.")
        return [TensorType(x.dtype, (x.shape[0], self.targets))]

    def check_tables(self, inputs: Types) -> None:
        types = [need(inputs, i, self) for i in range(1, 7)]
        tables = [t.numbers for t in types if t.numbers is not None]
        if len(tables) < 6:
            raise ModelError(f"{self.name}: its tables are not constants.")
        try:
            check_forest(tables, self.targets)
        except ModelError as error:
            raise reworded(error, f"{self.name}: {error}") from error

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        arrays = [a for a in inputs if a is not None]
        x, nodes, splits, roots, starts, entries, weights = arrays
        empty = np.nan if self.aggregate in (MIN, MAX) else 0
        y = np.full((len(x), self.targets), empty, np.float64)
        join = {MIN: np.fmin, MAX: np.fmax}.get(self.aggregate, np.add)
        for row, sums in zip(x.astype(splits.dtype), y, strict=True):
            for root in roots:
                at = int(root)
                while at >= 0:
                    feature, mode, true, false = (int(v) for v in nodes[at])
                    v = row[feature]
                    missing = mode >= MISSING_IS_TRUE and v != v
                    holds = missing or MODES[mode % MISSING_IS_TRUE](v, splits[at])
                    at = true if holds else false
                for i in range(int(starts[~at]), int(starts[~at + 1])):
                    t = int(entries[i])
                    sums[t] = join(sums[t], weights[i])
        if self.aggregate == AVERAGE:
            y /= len(roots)
        return (np.where(np.isnan(y) & (self.aggregate in (MIN, MAX)), 0, y).astype(x.dtype),)

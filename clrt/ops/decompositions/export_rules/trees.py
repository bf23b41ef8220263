"""clrt.DecisionTrees as the TreeEnsembleRegressor of ai.onnx.ml."""

from __future__ import annotations

from dataclasses import dataclass, field

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, IrOp, TensorType
from clrt.ops.base import Op, Types
from clrt.ops.checks import need
from clrt.ops.decompositions.export_rules.builder import ExportBuilder
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.ml.decision_trees import AGGREGATES, BRANCHES, MISSING_IS_TRUE, DecisionTrees
from clrt.ops.movement.slice import Slice
from clrt.ops.pointwise.cast import Cast


@dataclass(frozen=True)
class TreeEnsembleRegressor(Op):
    """Trees whose leaves have weights of any targets. Source: ai.onnx.ml, opset 1 to 3.

    Attributes:
        n_targets, aggregate_function, …: ONNX's, one element per node or per weight of a leaf.
    """

    n_targets: int = 0
    aggregate_function: str = "SUM"
    nodes_treeids: tuple[int, ...] = ()
    nodes_nodeids: tuple[int, ...] = ()
    nodes_featureids: tuple[int, ...] = ()
    nodes_values: tuple[float, ...] = ()
    nodes_modes: tuple[str, ...] = ()
    nodes_truenodeids: tuple[int, ...] = ()
    nodes_falsenodeids: tuple[int, ...] = ()
    nodes_missing_value_tracks_true: tuple[int, ...] = ()
    target_treeids: tuple[int, ...] = ()
    target_nodeids: tuple[int, ...] = ()
    target_ids: tuple[int, ...] = ()
    target_weights: tuple[float, ...] = ()

    name = "TreeEnsembleRegressor"
    domain = "ai.onnx.ml"

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        return [
            TensorType(DType.FLOAT32, None if x.shape is None else (x.shape[0], self.n_targets))
        ]


@dataclass
class _Rows:
    """The columns of the attributes, a row per node and a row per weight."""

    nodes: list[tuple[int, int, int, float, str, int, int, int]] = field(default_factory=list)
    targets: list[tuple[int, int, int, float]] = field(default_factory=list)


@register_decomposition(DecisionTrees, audience=DecompositionStage.EXPORT)
def _trees(node: Node, make: ExportBuilder) -> list[Value]:
    """The values that take the place of a DecisionTrees.

    Raises:
        UnsupportedError: The trees are no constants, or compare in float64.
    """
    op, x = node.op, node.arg(0)
    assert isinstance(op, DecisionTrees)
    tables = [node.arg(i).numbers for i in range(1, 7)]
    known = [t for t in tables if t is not None]
    if len(known) < len(tables):
        raise UnsupportedError(f"{node!r} computes its trees; ONNX has them as attributes.")
    if x.dtype is DType.FLOAT64:
        raise UnsupportedError(f"{node!r} compares in float64; ONNX Runtime's trees give float32.")
    if not op.targets:
        zero, axis = make.numbers([0]), make.numbers([1])
        return [make(Slice(), x, zero, zero, axis)]
    rows = _Rows()
    for tree, root in enumerate(known[2]):
        _add_tree(rows, tree, int(root), known)
    ensemble: IrOp = TreeEnsembleRegressor(
        op.targets,
        AGGREGATES[op.aggregate],
        *zip(*rows.nodes, strict=True),
        *(zip(*rows.targets, strict=True) if rows.targets else ()),
    )
    given = x if x.dtype is DType.FLOAT32 else make(Cast(DType.FLOAT32), x)
    result = make(ensemble, given)
    return [result if x.dtype is DType.FLOAT32 else make(Cast(x.dtype), result)]


def _add_tree(rows: _Rows, tree: int, root: int, tables: list[Array]) -> None:
    """The nodes that can be reached from a root; a node that two others share is there twice."""
    nodes, splits, _, starts, entries, weights = tables
    pending, count = [(0, root)], 1
    while pending:
        own, at = pending.pop()
        if at < 0:
            rows.nodes.append((tree, own, 0, 0.0, "LEAF", 0, 0, 0))
            for i in range(int(starts[~at]), int(starts[~at + 1])):
                rows.targets.append((tree, own, int(entries[i]), float(weights[i])))
            continue
        feature, mode, true, false = (int(v) for v in nodes[at])
        missing = int(mode >= MISSING_IS_TRUE)
        name, split = BRANCHES[mode % MISSING_IS_TRUE], float(splits[at])
        rows.nodes.append((tree, own, feature, split, name, count, count + 1, missing))
        pending += [(count, true), (count + 1, false)]
        count += 2

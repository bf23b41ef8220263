"""Exports clrt.DecisionTrees as TreeEnsembleRegressor of ai.onnx.ml."""

from __future__ import annotations

from dataclasses import field

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, IrOp, TensorType
from clrt.ops.base import Op, Types
from clrt.ops.checks import need
from clrt.ops.decompositions.export_rules.builder import ExportBuilder
from clrt.ops.decompositions.registry import DecompositionStage, register_decomposition
from clrt.ops.ml.decision_trees import AGGREGATES, BRANCHES, MISSING_IS_TRUE, DecisionTrees
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class TreeEnsembleRegressor(Op):
    """ONNX's op for decision trees whose leaves hold weights of targets; clrt only exports it.

    Fields are ONNX's attributes of the same names: `nodes_*` have an element per node of the trees,
    `target_*` an element per weight of a leaf. Source: ai.onnx.ml, opset 1 to 3.
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
    """Attributes of TreeEnsembleRegressor under construction, as rows of a table.

    Attributes:
        nodes: One row per node: tree, node, feature, value, mode, true child, false child, missing
            flag.
        targets: One row per leaf weight: tree, node, target, weight.
    """

    nodes: list[tuple[int, int, int, float, str, int, int, int]] = field(default_factory=list)
    targets: list[tuple[int, int, int, float]] = field(default_factory=list)


@register_decomposition(DecisionTrees, audience=DecompositionStage.EXPORT)
def _trees(node: Node, builder: ExportBuilder) -> list[Value]:
    """Exports DecisionTrees as TreeEnsembleRegressor; without targets, as a slice of no columns.

    Raises:
        UnsupportedError: The trees are not constant, or compare in float64.
    """
    op, x = node.op_as(DecisionTrees), node.arg(0)
    tables = [node.arg(i).numbers for i in range(1, 7)]
    known = [t for t in tables if t is not None]
    if len(known) < len(tables):
        raise UnsupportedError(f"{node!r} computes its trees; ONNX has them as attributes.")
    if x.dtype is DType.FLOAT64:
        raise UnsupportedError(f"{node!r} compares in float64; ONNX Runtime's trees give float32.")
    if not op.targets:
        return [builder.slice(x, 0, 0, 1)]
    rows = _Rows()
    for tree, root in enumerate(known[2]):
        _add_tree(rows, tree, int(root), known)
    ensemble: IrOp = TreeEnsembleRegressor(
        op.targets,
        AGGREGATES[op.aggregate],
        *zip(*rows.nodes, strict=True),
        *(zip(*rows.targets, strict=True) if rows.targets else ()),
    )
    result = builder(ensemble, builder.cast(x, DType.FLOAT32))
    return [builder.cast(result, x.dtype)]


def _add_tree(rows: _Rows, tree: int, root: int, tables: list[Array]) -> None:
    """Adds the nodes of one tree to `rows`; a node with two parents is duplicated.

    Args:
        rows: Rows to append to.
        tree: Number of the tree, to write to the rows.
        root: Index of the root node; ~index of a leaf if the tree is a single leaf.
        tables: The inputs of DecisionTrees after x, which describe all trees.
    """
    nodes, splits, _, starts, entries, weights = tables
    pending, count = [(0, root)], 1
    while pending:
        node_id, at = pending.pop()
        if at < 0:
            rows.nodes.append((tree, node_id, 0, 0.0, "LEAF", 0, 0, 0))
            for i in range(int(starts[~at]), int(starts[~at + 1])):
                rows.targets.append((tree, node_id, int(entries[i]), float(weights[i])))
            continue
        feature, mode, true, false = (int(v) for v in nodes[at])
        missing = int(mode >= MISSING_IS_TRUE)
        name, split = BRANCHES[mode % MISSING_IS_TRUE], float(splits[at])
        rows.nodes.append((tree, node_id, feature, split, name, count, count + 1, missing))
        pending += [(count, true), (count + 1, false)]
        count += 2

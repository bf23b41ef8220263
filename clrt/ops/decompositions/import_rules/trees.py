"""TreeEnsemble, TreeEnsembleRegressor and TreeEnsembleClassifier of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.ops.decompositions.import_rules import ml_scores as s
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.ml.decision_trees import AGGREGATES, BRANCHES, MISSING_IS_TRUE, SUM, check_forest
from clrt.util.fast_dataclass import dataclass

_DOMAIN = "ai.onnx.ml"
_EQ, _MEMBER = 4, 6
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass
class _Forest:
    """Tables of the op clrt.DecisionTrees, under construction.

    Attributes:
        nodes: For each inner node [feature, mode, true child, false child]; a child is the index of
            an inner node, or ~index of a leaf.
        splits: Threshold of each inner node.
        roots: For each tree, the index of its root node; ~index of its only leaf if it has no node.
        starts: For each leaf, the index of its first entry in `targets` and `weights`; then the
            length of these lists.
        targets: Target that the weight of the same index is added to.
        weights: Weights of all leaves, leaf by leaf.
    """

    nodes: list[list[int]] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    targets: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def add_leaf(self, targets: Sequence[int], weights: Sequence[float]) -> int:
        """Adds a leaf; returns ~index of the leaf, as it is stored as a child of nodes.

        Args:
            targets: Targets to which the leaf adds weights.
            weights: Weight of each of these targets.
        """
        self.targets += targets
        self.weights += weights
        self.starts.append(len(self.targets))
        return ~(len(self.starts) - 2)

    def apply(self, body: ImportBuilder, count: int, aggregate: int) -> tuple[Value, DType]:
        """Adds a DecisionTrees node on input 0.

        Args:
            body: Builder.
            count: Number of targets.
            aggregate: How trees are combined: index into `AGGREGATES`.

        Returns:
            The output, `[rows of input 0, count]`, and its dtype.

        Raises:
            ModelError: The trees are not well-formed.
        """
        x, dtype = body.inputs[0], body.input_dtype()
        if dtype is not DType.FLOAT16:
            x, dtype = body.real()
        real = np.float64 if dtype is DType.FLOAT64 else np.float32
        tables = (
            _int32(self.nodes).reshape(-1, 4),
            np.asarray(self.splits, real),
            _int32(self.roots),
            _int32(self.starts),
            _int32(self.targets),
            np.asarray(self.weights, real),
        )
        check_forest(tables, count)
        names = [body.constant(t) for t in tables]
        kind = {"targets": count, "aggregate": aggregate}
        return body("DecisionTrees", body.rows(x), *names, domain="clrt", **kind), dtype


def _int32(numbers: Sequence[Any]) -> Array:
    """Converts numbers to int32; numbers out of range are clamped to int32's limits.

    Clamped numbers are not valid as indices into tables, which is checked later.
    """
    ends = np.iinfo(np.int32)
    return np.clip(np.asarray(numbers, np.int64), ends.min, ends.max).astype(np.int32)


@register_import_decomposition(_DOMAIN, "TreeEnsemble")
def _tree_ensemble(body: ImportBuilder) -> None:
    a = body.attrs
    forest = _Forest()
    weights = a["leaf_weights"].reshape(-1).tolist()
    for target, weight in zip(a["leaf_targetids"], weights, strict=True):
        forest.add_leaf([target], [weight])
    modes = a["nodes_modes"].reshape(-1).tolist()
    missing = a.get("nodes_missing_value_tracks_true") or [0] * len(modes)
    children = [
        [~node if leaf else node for node, leaf in zip(a[ids], a[leafs], strict=True)]
        for ids, leafs in (
            ("nodes_truenodeids", "nodes_trueleafs"),
            ("nodes_falsenodeids", "nodes_falseleafs"),
        )
    ]
    members = _member_sets(a.get("membership_values"))
    splits = a["nodes_splits"].reshape(-1).tolist()
    extra: list[tuple[list[int], float]] = []
    for index, mode in enumerate(modes):
        feature, (true, false) = a["nodes_featureids"][index], (c[index] for c in children)
        flag = MISSING_IS_TRUE if missing[index] else 0
        values = [splits[index]]
        if mode == _MEMBER:
            if not members:
                raise ModelError("membership_values lacks the members of a node.")
            mode, values = _EQ, members.pop(0)
        elif mode > _MEMBER:
            raise ModelError(f"mode {mode} of a node is unknown.")
        # A set is a chain of nodes, one per member, linked by their false branches.
        rests = [len(modes) + len(extra) + k for k in range(len(values) - 1)]
        false_children = [*rests, false]
        forest.nodes.append([feature, mode | flag, true, false_children[0]])
        forest.splits.append(values[0])
        for value, false_child in zip(values[1:], false_children[1:], strict=True):
            extra.append(([feature, mode, true, false_child], value))
    forest.nodes += [node for node, _ in extra]
    forest.splits += [value for _, value in extra]
    forest.roots = [_root(r, children) for r in a["tree_roots"]]
    count, dtype = a["n_targets"], body.input_dtype()
    scores, real = forest.apply(body, count, a.get("aggregate_function", SUM))
    body.attrs = {**a, "post_transform": _TRANSFORMS[a.get("post_transform", 0)]}
    scores = (
        s.transform(body, scores) if real is dtype else s.transform(body, body.cast(scores, dtype))
    )
    body.outputs = [scores]


def _root(index: int, children: list[list[int]]) -> int:
    """Returns the root of a tree of TreeEnsemble.

    TreeEnsemble stores a tree that is a single leaf as a node with this leaf as both children.

    Args:
        index: Index of the tree's root node in the file.
        children: True children of all nodes, then false children of all nodes; ~index for leaves.

    Returns:
        `index`, or ~index of the leaf if the tree is a single leaf.
    """
    true, false = children[0][index], children[1][index]
    return true if true == false and true < 0 else index


def _member_sets(values: Array | None) -> list[list[float]]:
    """Returns the members of each node that tests whether a feature is in a set, in node order.

    Args:
        values: Attribute `membership_values`: the sets of these nodes, separated by NaN; None if
            absent.
    """
    sets: list[list[float]] = [[]]
    for value in [] if values is None else values.reshape(-1).tolist():
        if value == value:
            sets[-1].append(value)
        else:
            sets.append([])
    return [m for m in sets if m]


def _convert_forest(a: Any, kind: str) -> _Forest:
    """Converts the trees of TreeEnsembleRegressor or TreeEnsembleClassifier.

    Args:
        a: Attributes of the node.
        kind: Prefix of the attributes of leaf weights: "target" or "class".

    Raises:
        ModelError: A tree has a node twice.
        UnsupportedError: A node's mode is unknown.
    """
    forest = _Forest()
    ids = list(zip(a["nodes_treeids"], a["nodes_nodeids"], strict=True))
    modes = a["nodes_modes"]
    leaves: dict[tuple[int, int], tuple[list[int], list[float]]] = {}
    rows = (
        a[f"{kind}_treeids"],
        a[f"{kind}_nodeids"],
        a[f"{kind}_ids"],
        _values(a, f"{kind}_weights"),
    )
    for tree, node, target, weight in zip(*rows, strict=True):
        targets, weights = leaves.setdefault((tree, node), ([], []))
        targets.append(target)
        weights.append(weight)
    children: dict[tuple[int, int], int] = {}
    branches = 0
    for key, mode in zip(ids, modes, strict=True):
        if key in children:
            raise ModelError(f"tree {key[0]} has node {key[1]} twice.")
        if mode == "LEAF":
            children[key] = forest.add_leaf(*leaves.get(key, ([], [])))
        else:
            children[key] = branches
            branches += 1
    splits = _values(a, "nodes_values")
    missing = a.get("nodes_missing_value_tracks_true") or [0] * len(ids)
    for index, (tree, _) in enumerate(ids):
        if modes[index] == "LEAF":
            continue
        if modes[index] not in BRANCHES:
            raise UnsupportedError(f"mode '{modes[index]}' of a node")
        mode = BRANCHES.index(modes[index]) | (MISSING_IS_TRUE if missing[index] else 0)
        branch_children = [
            children[tree, a[f"nodes_{branch}nodeids"][index]] for branch in ("true", "false")
        ]
        forest.nodes.append([a["nodes_featureids"][index], mode, *branch_children])
        forest.splits.append(splits[index])
    first = {tree: key for key in reversed(ids) for tree in key[:1]}
    forest.roots = [children[first[tree]] for tree in sorted(first)]
    return forest


def _values(a: Any, name: str) -> list[float]:
    """Returns the floats in attribute `{name}_as_tensor` if set, else in attribute `name`.

    [] if both are absent.

    Args:
        a: Attributes of the node by name.
        name: Name of the attribute in old opsets.
    """
    array = a.get(f"{name}_as_tensor")
    return list(a.get(name) or []) if array is None else array.reshape(-1).tolist()


def _add_base(body: ImportBuilder, scores: Value, dtype: DType) -> Value:
    """Returns scores + attribute `base_values`, if it is set, as float32.

    Args:
        body: Builder.
        scores: Sums of the trees, `[rows, targets]`.
        dtype: Dtype of `scores`.
    """
    base = _values(body.attrs, "base_values")
    if base:
        scores = body("Add", scores, body.constant(np.asarray(base, dtype.numpy)))
    return body.cast(scores, DType.FLOAT32)


@register_import_decomposition(_DOMAIN, "TreeEnsembleRegressor")
def _tree_ensemble_regressor(body: ImportBuilder) -> None:
    name = body.attrs.get("aggregate_function", "SUM")
    if name not in AGGREGATES:
        raise UnsupportedError(f"aggregate_function '{name}'")
    forest = _convert_forest(body.attrs, "target")
    sums, dtype = forest.apply(body, body.attrs.get("n_targets", 1), AGGREGATES.index(name))
    body.outputs = [s.transform(body, _add_base(body, sums, dtype))]


@register_import_decomposition(_DOMAIN, "TreeEnsembleClassifier")
def _tree_ensemble_classifier(body: ImportBuilder) -> None:
    labels = body.labels("classlabels_strings", "classlabels_int64s")
    if labels is None:
        raise ModelError("it has no class labels.")
    forest = _convert_forest(body.attrs, "class")
    used = set(forest.targets)
    share = min(forest.weights, default=0.0) >= 0
    if len(labels) == 2 and used == {0}:
        return _two_classes(body, forest, labels, share)
    scores = _add_base(body, *forest.apply(body, len(labels), SUM))
    if len(labels) == 1:
        class_index = s.above(body, scores, 0.0)
        names: Array = np.array([labels.dtype.type(), labels[0]])
    elif len(labels) == 2 and used == {1}:
        second = body("Gather", scores, body.ints(1), axis=1)
        class_index, names = s.above(body, second, 0.5 if share else 0.0), labels
    else:
        class_index, names = s.best(body, scores), labels
    body.outputs = [s.named(body, class_index, names), s.transform(body, scores)]


def _two_classes(body: ImportBuilder, forest: _Forest, labels: Array, share: bool) -> None:
    """Decomposes TreeEnsembleClassifier with two labels, if all weights are those of class 0.

    Their sum is the score of class 1, as in ONNX Runtime; ONNX does not specify it.

    Args:
        body: Builder; its outputs are set.
        forest: Trees.
        labels: The two class labels.
        share: Whether the score is a probability (no weight is negative). Class 1 is predicted
            above 0.5 if it is, else above 0.
    """
    base = _values(body.attrs, "base_values")[:1]
    body.attrs = {**body.attrs, "base_values": base, "base_values_as_tensor": None}
    score = _add_base(body, *forest.apply(body, 1, SUM))
    class_index = s.above(body, score, 0.5 if share else 0.0)
    body.outputs = [s.named(body, class_index, labels), s.two_columns(body, score, share)]

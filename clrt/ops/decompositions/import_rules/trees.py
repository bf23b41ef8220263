"""TreeEnsemble, TreeEnsembleRegressor and TreeEnsembleClassifier of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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

_DOMAIN = "ai.onnx.ml"
_EQ, _MEMBER = 4, 6
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass
class _Forest:
    """The tables of clrt.DecisionTrees."""

    nodes: list[list[int]] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    targets: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def add_leaf(self, targets: Sequence[int], weights: Sequence[float]) -> int:
        """Adds a leaf and returns it as a child."""
        self.targets += targets
        self.weights += weights
        self.starts.append(len(self.targets))
        return ~(len(self.starts) - 2)

    def apply(self, body: ImportBuilder, count: int, aggregate: int) -> tuple[Value, DType]:
        """The sums [N, count], and their dtype."""
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
    """int32 [n]; what it does not hold becomes one of its ends, which is no place in a table."""
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
    members = _members(a.get("membership_values"))
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
        # One more node for each further member of a set, which the false way leads to.
        rests = [len(modes) + len(extra) + k for k in range(len(values) - 1)]
        ways = [*rests, false]
        forest.nodes.append([feature, mode | flag, true, ways[0]])
        forest.splits.append(values[0])
        for value, way in zip(values[1:], ways[1:], strict=True):
            extra.append(([feature, mode, true, way], value))
    forest.nodes += [node for node, _ in extra]
    forest.splits += [value for _, value in extra]
    forest.roots = [_root(r, children) for r in a["tree_roots"]]
    count, dtype = a["n_targets"], body.input_dtype()
    made, real = forest.apply(body, count, a.get("aggregate_function", SUM))
    body.attrs = {**a, "post_transform": _TRANSFORMS[a.get("post_transform", 0)]}
    made = s.transform(body, made) if real is dtype else s.transform(body, body.cast(made, dtype))
    body.outputs = [made]


def _root(index: int, children: list[list[int]]) -> int:
    """A node, or the leaf where the tree is one: both ways lead to it."""
    true, false = children[0][index], children[1][index]
    return true if true == false and true < 0 else index


def _members(values: Array | None) -> list[list[float]]:
    """The sets of members, each ended by NaN."""
    sets: list[list[float]] = [[]]
    for value in [] if values is None else values.reshape(-1).tolist():
        if value == value:
            sets[-1].append(value)
        else:
            sets.append([])
    return [m for m in sets if m]


def _forest(a: Any, kind: str) -> _Forest:
    """The trees of the older ops, whose leaves have weights by `kind` (target or class)."""
    forest = _Forest()
    ids = list(zip(a["nodes_treeids"], a["nodes_nodeids"], strict=True))
    modes = a["nodes_modes"]
    given: dict[tuple[int, int], tuple[list[int], list[float]]] = {}
    rows = (
        a[f"{kind}_treeids"],
        a[f"{kind}_nodeids"],
        a[f"{kind}_ids"],
        _values(a, f"{kind}_weights"),
    )
    for tree, node, target, weight in zip(*rows, strict=True):
        targets, weights = given.setdefault((tree, node), ([], []))
        targets.append(target)
        weights.append(weight)
    places: dict[tuple[int, int], int] = {}
    branches = 0
    for key, mode in zip(ids, modes, strict=True):
        if key in places:
            raise ModelError(f"tree {key[0]} has node {key[1]} twice.")
        if mode == "LEAF":
            places[key] = forest.add_leaf(*given.get(key, ([], [])))
        else:
            places[key] = branches
            branches += 1
    splits = _values(a, "nodes_values")
    missing = a.get("nodes_missing_value_tracks_true") or [0] * len(ids)
    for index, (tree, _) in enumerate(ids):
        if modes[index] == "LEAF":
            continue
        if modes[index] not in BRANCHES:
            raise UnsupportedError(f"mode '{modes[index]}' of a node")
        mode = BRANCHES.index(modes[index]) | (MISSING_IS_TRUE if missing[index] else 0)
        ways = [places[tree, a[f"nodes_{way}nodeids"][index]] for way in ("true", "false")]
        forest.nodes.append([a["nodes_featureids"][index], mode, *ways])
        forest.splits.append(splits[index])
    first = {tree: key for key in reversed(ids) for tree in key[:1]}
    forest.roots = [places[first[tree]] for tree in sorted(first)]
    return forest


def _values(a: Any, name: str) -> list[float]:
    """An attribute of floats, which newer opsets may have as a tensor."""
    found = a.get(f"{name}_as_tensor")
    return list(a.get(name) or []) if found is None else found.reshape(-1).tolist()


def _add_base(body: ImportBuilder, scores: Value, dtype: DType) -> Value:
    base = _values(body.attrs, "base_values")
    if base:
        scores = body("Add", scores, body.constant(np.asarray(base, dtype.numpy)))
    return body.float32(scores, dtype)


@register_import_decomposition(_DOMAIN, "TreeEnsembleRegressor")
def _tree_ensemble_regressor(body: ImportBuilder) -> None:
    name = body.attrs.get("aggregate_function", "SUM")
    if name not in AGGREGATES:
        raise UnsupportedError(f"aggregate_function '{name}'")
    forest = _forest(body.attrs, "target")
    made, dtype = forest.apply(body, body.attrs.get("n_targets", 1), AGGREGATES.index(name))
    body.outputs = [s.transform(body, _add_base(body, made, dtype))]


@register_import_decomposition(_DOMAIN, "TreeEnsembleClassifier")
def _tree_ensemble_classifier(body: ImportBuilder) -> None:
    labels = body.labels("classlabels_strings", "classlabels_int64s")
    if labels is None:
        raise ModelError("it has no class labels.")
    forest = _forest(body.attrs, "class")
    used = set(forest.targets)
    share = min(forest.weights, default=0.0) >= 0
    if len(labels) == 2 and used == {0}:
        return _two_classes(body, forest, labels, share)
    scores = _add_base(body, *forest.apply(body, len(labels), SUM))
    if len(labels) == 1:
        place = s.above(body, scores, 0.0)
        names: Array = np.array([labels.dtype.type(), labels[0]])
    elif len(labels) == 2 and used == {1}:
        second = body("Gather", scores, body.ints(1), axis=1)
        place, names = s.above(body, second, 0.5 if share else 0.0), labels
    else:
        place, names = s.best(body, scores), labels
    body.outputs = [s.named(body, place, names), s.transform(body, scores)]


def _two_classes(body: ImportBuilder, forest: _Forest, labels: Array, share: bool) -> None:
    """What the trees give class 0 is the score of class 1, from which that of class 0 follows.

    Weights that are all positive are parts of a probability (`share`), and the class is 1 from one
    half on; others make it 1 above 0. Source: ONNX Runtime; ONNX does not say.
    """
    base = _values(body.attrs, "base_values")[:1]
    body.attrs = {**body.attrs, "base_values": base, "base_values_as_tensor": None}
    score = _add_base(body, *forest.apply(body, 1, SUM))
    place = s.above(body, score, 0.5 if share else 0.0)
    body.outputs = [s.named(body, place, labels), s.two_columns(body, score, share)]

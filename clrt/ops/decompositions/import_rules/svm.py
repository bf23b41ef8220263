"""SVMRegressor and SVMClassifier of ai.onnx.ml: weighted kernel values of the support vectors."""

from __future__ import annotations

from itertools import combinations

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
from clrt.util.host_limits import check_host_bytes

_DOMAIN = "ai.onnx.ml"


def _floats(body: ImportBuilder, name: str) -> Array:
    """Returns attribute `name`, a list of floats, as a float32 array; empty if absent."""
    return np.asarray(body.attrs.get(name) or [], np.float32)


def _kernel(body: ImportBuilder, vectors: Array, kind: str) -> Value:
    """Returns the SVM kernel of each row of x with each support vector, `[rows, vectors]`.

    Args:
        body: Builder; input 0 is x, and the attributes hold the kernel's parameters.
        vectors: Support vectors, `[vectors, features]`.
        kind: LINEAR, POLY, RBF or SIGMOID.

    Raises:
        UnsupportedError: `kind` is unknown.
    """
    x = body.rows(body.as_float32())
    gamma, bias, degree = (*_floats(body, "kernel_params"), 0, 0, 0)[:3]
    if kind == "RBF":
        distance = body("SquaredDistance", x, body.constant(vectors), domain="clrt")
        return body("Exp", body("Mul", distance, body.floats(-gamma)))
    if kind not in ("LINEAR", "POLY", "SIGMOID"):
        raise UnsupportedError(f"kernel_type '{kind}'")
    product = body("MatMul", x, body.constant(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return product
    product = body("Add", body("Mul", product, body.floats(gamma)), body.floats(bias))
    if kind == "SIGMOID":
        return body("Tanh", product)
    return _power(body, product, degree)


def _power(body: ImportBuilder, x: Value, degree: float) -> Value:
    """Returns x^degree elementwise.

    For integer degrees from 1 to 8 it multiplies, because x may be negative.
    """
    if degree != int(degree) or not 1 <= degree <= 8:
        return body("Pow", x, body.floats(degree))
    power = x
    for _ in range(int(degree) - 1):
        power = body("Mul", power, x)
    return power


def _weighted(body: ImportBuilder, kernels: Value, weights: Array, bias: Array) -> Value:
    """Returns kernels @ weights + bias, `[rows, results]`.

    Args:
        body: Builder.
        kernels: `[rows, vectors]`.
        weights: `[vectors, results]`.
        bias: `[results]` or `[1]`.
    """
    product = body("MatMul", kernels, body.constant(np.ascontiguousarray(weights)))
    return body("Add", product, body.constant(bias))


@register_import_decomposition(_DOMAIN, "SVMRegressor")
def _svm_regressor(body: ImportBuilder) -> None:
    weights, rho = _floats(body, "coefficients"), _floats(body, "rho")[:1]
    count = body.attrs.get("n_supports", 0)
    if count:
        vectors = _floats(body, "support_vectors").reshape(count, -1)
        kernels = _kernel(body, vectors, body.attrs.get("kernel_type", "LINEAR"))
        scores = _weighted(body, kernels, weights.reshape(-1, 1)[:count], rho)
    else:
        scores = body("Add", _kernel(body, weights.reshape(1, -1), "LINEAR"), body.constant(rho))
    if body.attrs.get("one_class", 0):
        positive = body("Greater", scores, body.floats(0))
        scores = body("Where", positive, body.floats(1), body.floats(-1))
    body.outputs = [s.transform(body, scores)]


@register_import_decomposition(_DOMAIN, "SVMClassifier")
def _svm_classifier(body: ImportBuilder) -> None:
    labels = body.labels("classlabels_strings", "classlabels_ints")
    per_class = list(body.attrs.get("vectors_per_class") or [])
    if sum(per_class):
        body.outputs = _by_vectors(body, labels, per_class)
    else:
        body.outputs = _by_planes(body, labels)


def _by_planes(body: ImportBuilder, labels: Array | None) -> list[Value]:
    """Decomposes SVMClassifier without support vectors: a linear score per class (liblinear).

    Args:
        body: Builder.
        labels: Class labels; None if absent: then a single score decides between classes 0 and 1.

    Returns:
        Outputs of the node: predicted labels `[rows]`, and scores `[rows, classes]`; scores
        `[rows, 1]` if `labels` is None.
    """
    classes = 1 if labels is None else len(labels)
    planes, rho = _floats(body, "coefficients").reshape(classes, -1), _floats(body, "rho")
    scores = body("Add", _kernel(body, planes, "LINEAR"), body.constant(rho[:1]))
    if labels is None:
        return [s.above(body, scores, 0.0), s.transform(body, scores)]
    return [s.named(body, s.best(body, scores), labels), s.transform(body, scores)]


def _by_vectors(body: ImportBuilder, labels: Array | None, per_class: list[int]) -> list[Value]:
    """Decomposes SVMClassifier with support vectors (libsvm).

    For each pair of classes, a decision votes for one class of the pair; the class with the most
    votes wins.

    Args:
        body: Builder.
        labels: Class labels; None if class indices are the labels.
        per_class: Number of support vectors of each class.

    Returns:
        Outputs of the node: predicted labels `[rows]`; and scores. Scores are class probabilities
        `[rows, classes]` if the node has their parameters (`prob_a`), else decision values, one per
        pair of classes; of two classes, one score per class.

    Raises:
        ModelError: The numbers of labels and classes differ.
        UnsupportedError: The kernel type is unknown.
    """
    classes, count = len(per_class), sum(per_class)
    if labels is not None and len(labels) != classes:
        raise ModelError(f"it has {len(labels)} labels and vectors of {classes} classes.")
    vectors = _floats(body, "support_vectors").reshape(count, -1)
    coefficients = _floats(body, "coefficients").reshape(-1, count)
    # Per pair of classes: two votes per class, and one weight per vector.
    check_host_bytes((2 * classes + count) * classes**2 * 2, f"An SVM of {classes} classes")
    pairs = list(combinations(range(classes), 2))
    starts = np.cumsum([0, *per_class])
    weights, votes = (
        np.zeros((count, len(pairs)), np.float32),
        np.zeros((2, len(pairs), classes), np.float32),
    )
    for index, (i, j) in enumerate(pairs):
        for this, other in ((i, j - 1), (j, i)):
            span = slice(starts[this], starts[this + 1])
            weights[span, index] = coefficients[other, span]
        votes[0, index, i] = votes[1, index, j] = 1
    kernels = _kernel(body, vectors, body.attrs.get("kernel_type", "LINEAR"))
    rho = _floats(body, "rho")[: len(pairs)]
    decisions = _weighted(body, kernels, weights, rho)
    probable = bool(body.attrs.get("prob_a"))
    positive = body.cast(body("Greater", decisions, body.floats(0)), DType.FLOAT32)
    best_class = s.best(body, _weighted(body, positive, (votes[0] - votes[1]), votes[1].sum(0)))
    if probable:
        scores = s.transform(body, _probabilities(body, decisions, classes))
    elif classes == 2:
        scores = s.two_columns(body, decisions, share=False)
    else:
        scores = s.transform(body, decisions)
    return [s.named(body, best_class, labels), scores]


def _probabilities(body: ImportBuilder, decisions: Value, classes: int) -> Value:
    """Returns class probabilities `[rows, classes]`, by Platt scaling and pairwise coupling.

    Args:
        body: Builder.
        decisions: Decision value of each pair of classes, `[rows, pairs]`.
        classes: Number of classes.
    """
    a, b = _floats(body, "prob_a"), _floats(body, "prob_b")
    z = body("Add", body("Mul", decisions, body.constant(a)), body.constant(b))
    return body("CouplePairs", body("Sigmoid", body("Neg", z)), domain="clrt", classes=classes)

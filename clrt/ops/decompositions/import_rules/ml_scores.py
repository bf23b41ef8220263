"""Post-processing of scores [rows, classes] in classifiers and regressors of ai.onnx.ml."""

from __future__ import annotations

import math

from clrt.errors import UnsupportedError
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.ops.decompositions.import_rules.import_builder import ImportBuilder


def transform(body: ImportBuilder, scores: Value) -> Value:
    """Applies the node's attribute `post_transform` (softmax, …) to scores; none by default.

    Args:
        body: Builder.
        scores: `[rows, classes or targets]`.

    Raises:
        UnsupportedError: The transform is unknown.
    """
    name = body.attrs.get("post_transform", "NONE")
    match name:
        case "NONE":
            return scores
        case "LOGISTIC":
            return body("Sigmoid", scores)
        case "SOFTMAX":
            return body("Softmax", scores, axis=-1)
        case "SOFTMAX_ZERO":
            return _softmax_zero(body, scores)
        case "PROBIT":
            return _probit(body, scores)
    raise UnsupportedError(f"post_transform '{name}'")


def _softmax_zero(body: ImportBuilder, x: Value) -> Value:
    """Returns the softmax along the last axis over elements that are not (almost) 0.

    Elements of at most 1e-7 in absolute value get probability 0.
    """
    last = body.ints(-1)
    some = body("Greater", body("Abs", x), body.floats(1e-7))
    top = body("ReduceMax", x, last, keepdims=1)
    e = body("Where", some, body("Exp", body("Sub", x, top)), body.floats(0))
    return body("Div", e, body("ReduceSum", e, last, keepdims=1))


def _probit(body: ImportBuilder, x: Value) -> Value:
    """Returns the quantiles of the normal distribution for probabilities x.

    Computed by Winitzki's approximation of the inverse of erf, as in ONNX Runtime.
    """
    one = body.floats(1)
    y = body("Sub", body("Mul", x, body.floats(2)), one)
    log = body("Log", body("Mul", body("Sub", one, y), body("Add", one, y)))
    half = body("Add", body("Mul", log, body.floats(0.5)), body.floats(2 / (math.pi * 0.147)))
    inner = body("Sub", body("Mul", half, half), body("Mul", log, body.floats(1 / 0.147)))
    root = body("Sqrt", body("Sub", body("Sqrt", inner), half))
    return body("Mul", body("Mul", body("Sign", y), root), body.floats(math.sqrt(2)))


def two_columns(body: ImportBuilder, score: Value, share: bool) -> Value:
    """Returns the scores of two classes, `[rows, 2]`, with the node's `post_transform`.

    The score of class 0 is -score; or 1 - score if the transform is PROBIT, or NONE with a
    probability as score. Source: ONNX Runtime for NONE, else ONNX's reference implementation.

    Args:
        body: Builder.
        score: Score of class 1, `[rows, 1]`.
        share: Whether `score` is a probability.
    """
    name = body.attrs.get("post_transform", "NONE")
    complement = name == "PROBIT" or (name == "NONE" and share)
    other = body("Sub", body.floats(1), score) if complement else body("Neg", score)
    return transform(body, body("Concat", other, score, axis=1))


def best(body: ImportBuilder, scores: Value) -> Value:
    """Returns the index of the class with the largest score, int64 `[rows]`.

    Args:
        body: Builder.
        scores: `[rows, classes]`.
    """
    return body("ArgMax", scores, axis=1, keepdims=0)


def named(body: ImportBuilder, indices: Value, labels: Array | None) -> Value:
    """Returns the labels of class indices; the indices themselves if `labels` is None."""
    return indices if labels is None else body("Gather", body.constant(labels), indices)


def above(body: ImportBuilder, score: Value, threshold: float) -> Value:
    """Returns 1 for scores `[rows, 1]` above the threshold, 0 for others, int64 `[rows]`."""
    over = body("Greater", score, body.floats(threshold))
    return body("Reshape", body("Cast", over, to=7), body.ints(-1))

"""What the classifiers and regressors of ai.onnx.ml do with their scores [rows, classes]."""

from __future__ import annotations

import math

from clrt.errors import UnsupportedError
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.ops.decompositions.import_rules.import_builder import ImportBuilder


def transform(body: ImportBuilder, scores: Value) -> Value:
    """Applies the node's `post_transform`.

    Raises:
        UnsupportedError: ONNX has no such transform.
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
    """Softmax in which a score of 0 has no weight."""
    last = body.ints(-1)
    some = body("Greater", body("Abs", x), body.floats(1e-7))
    top = body("ReduceMax", x, last, keepdims=1)
    e = body("Where", some, body("Exp", body("Sub", x, top)), body.floats(0))
    return body("Div", e, body("ReduceSum", e, last, keepdims=1))


def _probit(body: ImportBuilder, x: Value) -> Value:
    """The normal quantile, with Winitzki's inverse of erf, as ONNX Runtime has it."""
    one = body.floats(1)
    y = body("Sub", body("Mul", x, body.floats(2)), one)
    log = body("Log", body("Mul", body("Sub", one, y), body("Add", one, y)))
    half = body("Add", body("Mul", log, body.floats(0.5)), body.floats(2 / (math.pi * 0.147)))
    inner = body("Sub", body("Mul", half, half), body("Mul", log, body.floats(1 / 0.147)))
    root = body("Sqrt", body("Sub", body("Sqrt", inner), half))
    return body("Mul", body("Mul", body("Sign", y), root), body.floats(math.sqrt(2)))


def two_columns(body: ImportBuilder, score: Value, share: bool) -> Value:
    """The transformed scores of two classes, from the score [rows, 1] of the second one.

    The first one's is the negative; the complement to 1 where the transform is PROBIT, or where it
    is NONE and the score is a share. Source: ONNX Runtime for NONE, ONNX's reference else.
    """
    name = body.attrs.get("post_transform", "NONE")
    complement = name == "PROBIT" or (name == "NONE" and share)
    other = body("Sub", body.floats(1), score) if complement else body("Neg", score)
    return transform(body, body("Concat", other, score, axis=1))


def best(body: ImportBuilder, scores: Value) -> Value:
    """The number of the largest score of each row, [rows]."""
    return body("ArgMax", scores, axis=1, keepdims=0)


def named(body: ImportBuilder, places: Value, labels: Array | None) -> Value:
    """The labels of class numbers; the numbers where there are none."""
    return places if labels is None else body("Gather", body.constant(labels), places)


def above(body: ImportBuilder, score: Value, threshold: float) -> Value:
    """1 where a score is over a threshold, else 0, [rows], from [rows, 1]."""
    over = body("Greater", score, body.floats(threshold))
    return body("Reshape", body("Cast", over, to=7), body.ints(-1))

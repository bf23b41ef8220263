"""LinearRegressor and LinearClassifier of ai.onnx.ml: a matrix product, then post-processing."""

from __future__ import annotations

import numpy as np

from clrt.errors import ModelError
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules import ml_scores as s
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)

_DOMAIN = "ai.onnx.ml"


def _product(body: ImportBuilder, rows: int) -> Value:
    """Returns x @ coefficients.T + intercepts, as float32 `[rows of x, rows]`.

    Coefficients and intercepts are attributes of the node.

    Args:
        body: Builder; input 0 is x, `[rows of x, features]`.
        rows: Rows of the matrix of coefficients: targets or classes.
    """
    weights = np.asarray(body.attrs["coefficients"], np.float32).reshape(rows, -1)
    intercepts = np.asarray(body.attrs.get("intercepts") or [0.0], np.float32)
    x = body.rows(body.as_float32())
    return body("Gemm", x, body.constant(weights), body.constant(intercepts), transB=1)


@register_import_decomposition(_DOMAIN, "LinearRegressor")
def _linear_regressor(body: ImportBuilder) -> None:
    body.outputs = [s.transform(body, _product(body, body.attrs.get("targets", 1)))]


@register_import_decomposition(_DOMAIN, "LinearClassifier")
def _linear_classifier(body: ImportBuilder) -> None:
    labels = body.labels("classlabels_strings", "classlabels_ints")
    intercepts = body.attrs.get("intercepts") or []
    classes = len(intercepts) or (1 if labels is None else len(labels))
    scores = _product(body, classes)
    if classes > 1:
        class_index = s.best(body, scores)
        body.outputs = [s.named(body, class_index, labels), s.transform(body, scores)]
        return
    if labels is not None and len(labels) > 2:
        raise ModelError(f"it has one row of coefficients for {len(labels)} classes.")
    class_index = s.above(body, scores, 0.0)
    if labels is not None and len(labels) == 2:
        transformed = s.two_columns(body, scores, share=True)
    else:
        transformed = s.transform(body, scores)
    if labels is not None and len(labels) == 1:
        labels = np.array([labels.dtype.type(), labels[0]])
    body.outputs = [s.named(body, class_index, labels), transformed]

"""Bernoulli: returns 1 with the probability given by the input."""

from __future__ import annotations

from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)


@register_import_decomposition("", "Bernoulli")
def _bernoulli(body: ImportBuilder) -> None:
    """Decomposes Bernoulli: 1 where a uniform random number is below the input, else 0.

    ONNX's function body wrongly compares the other way; ONNX's text and reference do not.
    """
    seed = {"seed": body.attrs["seed"]} if "seed" in body.attrs else {}
    x = body.inputs[0]
    below = body("Less", body("RandomUniformLike", x, **seed), x)
    body.outputs = [body("Cast", below, to=body.attrs.get("dtype", body.input_dtype().onnx))]

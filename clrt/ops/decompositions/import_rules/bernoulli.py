"""Bernoulli: whether a random number is below the probability."""

from __future__ import annotations

from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)


@register_import_decomposition("", "Bernoulli")
def _bernoulli(body: ImportBuilder) -> None:
    """ONNX's own body gives 1 where the number is above, against ONNX's text and its reference."""
    seed = {"seed": body.attrs["seed"]} if "seed" in body.attrs else {}
    x = body.inputs[0]
    below = body("Less", body("RandomUniformLike", x, **seed), x)
    body.outputs = [body("Cast", below, to=body.attrs.get("dtype", body.input_dtype().onnx))]

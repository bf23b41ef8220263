"""Bernoulli: returns 1 with the probability given by the input."""

from __future__ import annotations

from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)


@register_import_decomposition("", "Bernoulli")
def _bernoulli(body: ImportBuilder) -> None:
    """Replaces ONNX's function body, which wrongly returns 1 if the random number is above the
    input.

    ONNX's text and reference implementation return 1 if it is below.
    """
    seed = {"seed": body.attrs["seed"]} if "seed" in body.attrs else {}
    x = body.inputs[0]
    below = body("Less", body("RandomUniformLike", x, **seed), x)
    body.outputs = [body("Cast", below, to=body.attrs.get("dtype", body.input_dtype().onnx))]

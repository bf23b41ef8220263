"""The end of every decoder's graph: logits to the tokens that follow."""

from __future__ import annotations

from clrt.ir.builder import Builder
from clrt.ir.dims import Shape, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.generation.sample_tokens import SampleTokens
from clrt.ops.movement.gather import Gather
from clrt.util.math import ceil_div

SAMPLER_INPUTS = ("settings", "limits", "history", "allowed", "bias_ids", "bias_values")
"""The inputs that `sample_next` makes."""


def sample_next(
    build: Builder, logits: Value, places: Value, rows: Value, vocabulary: int
) -> tuple[list[Value], Value, Value]:
    """What SampleTokens is asked, the tokens that follow, and their log-probabilities.

    A token is drawn by the number of its place, so that a text does not depend on others.

    Args:
        logits: `[rows, vocabulary]`.
        places: int32 `[tokens]`, the place of each token in its text.
        rows: int32 `[rows]`, the tokens that logits are of.
    """
    count, biases = symbol("rows"), symbol("biases")
    forms: tuple[tuple[DType, Shape], ...] = (
        (DType.FLOAT32, (count, 8)),
        (DType.INT32, (count, 4)),
        (DType.INT32, (count, symbol("history"))),
        (DType.UINT32, (count, ceil_div(vocabulary, 32))),
        (DType.INT32, (count, biases)),
        (DType.FLOAT32, (count, biases)),
    )
    asked = [build.input(n, *form) for n, form in zip(SAMPLER_INPUTS, forms, strict=True)]
    named = Builder(build.names, "/sample", nodes=build.nodes)
    place = named.add(Gather(), places, rows)
    given = (logits, *asked[:3], place, *asked[3:])
    token, logprob = named.add_all(SampleTokens(), *given)
    return asked, token, logprob

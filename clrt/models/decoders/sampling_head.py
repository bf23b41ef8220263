"""The last nodes of every decoder graph: samples next tokens from logits."""

from __future__ import annotations

from clrt.ir.builder import Builder
from clrt.ir.dims import Shape, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.generation.sample_tokens import SampleTokens
from clrt.ops.movement.gather import Gather
from clrt.util.math import ceil_div

SAMPLER_INPUTS = ("settings", "limits", "history", "allowed", "bias_ids", "bias_values")
"""Names of the inputs that `sample_next` adds."""


def sample_next(
    build: Builder, logits: Value, places: Value, rows: Value, vocabulary: int
) -> tuple[list[Value], Value, Value]:
    """Adds a SampleTokens node, which samples the next tokens, and its inputs.

    A token's random number depends on its position, so a sequence does not depend on other
    sequences in the batch.

    Args:
        logits: float32 `[rows, vocabulary]`.
        places: int32 `[tokens]`, position of each token in its sequence.
        rows: int32 `[rows]`, index of the token that each row of logits belongs to.
        vocabulary: Number of tokens in the vocabulary.

    Returns:
        The added inputs (`SAMPLER_INPUTS`), the next tokens int32 `[rows]`, and their
        log-probabilities float32 `[rows]`.
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
    inputs = [build.input(n, *form) for n, form in zip(SAMPLER_INPUTS, forms, strict=True)]
    named = build.under("/sample")
    place = named.add(Gather(), places, rows)
    given = (logits, *inputs[:3], place, *inputs[3:])
    token, logprob = named.add_all(SampleTokens(), *given)
    return inputs, token, logprob

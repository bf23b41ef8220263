"""BifurcationDetector: how far predicted tokens can be taken over, by the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clrt.errors import InputError, ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import agree, need
from clrt.ops.movement.common import fresh_dim, given
from clrt.ops.registry import register


@register
@dataclass(frozen=True)
class BifurcationDetector(Op):
    """The tokens so far with those predicted up to the first that the source does not have, too.

    Inputs: the source `[S]`, the tokens `[T]`, where in the source the last ones ended, P, and
    optionally what is predicted behind them, `[S + 1 - P]`. Outputs: the tokens, and where in the
    source an n-gram ends that is the last of them and that it has once only; else -1. Longer
    n-grams count more. Source: com.microsoft BifurcationDetector 1.
    """

    max_ngram_size: int = 3
    min_ngram_size: int = 1

    domain = "com.microsoft"
    accuracy = Accuracy.EXACT
    has_slow_reference = True

    def infer(self, inputs: Types) -> list[TensorType]:
        source, tokens, place = (need(inputs, i, self) for i in range(3))
        predicted = inputs[3] if given(inputs, 3) else None
        for type_ in (source, tokens, predicted):
            if type_ is not None and not agree(type_, (None,)):
                raise ShapeError(f"BifurcationDetector: tokens {type_} must have one axis.")
        shape = (fresh_dim(),) if given(inputs, 3) else tokens.shape
        return [TensorType(DType.INT64, shape), TensorType(DType.INT64, place.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        source, tokens, place, *rest = inputs
        assert source is not None and tokens is not None and place is not None
        predicted = rest[0] if rest else None
        if predicted is not None:
            at = int(place.reshape(-1)[0])
            left = source[max(at, 0) :]
            if not 0 <= at <= len(source) or len(predicted) != len(left) + 1:
                raise InputError(
                    f"BifurcationDetector: {len(predicted)} predicted tokens and place {at} do not "
                    f"fit a source of {len(source)}; give one more than it has from there on."
                )
            other = np.flatnonzero(predicted[:-1] != left)
            taken = int(other[0]) if len(other) else len(left)
            tokens = np.concatenate([tokens, predicted[: taken + 1]])
        return tokens, np.full(place.shape, self._match(source.tolist(), tokens.tolist()), np.int64)

    def _match(self, source: list[int], tokens: list[int]) -> int:
        """Where the last n-gram of the tokens ends in the source."""
        found = -1
        for size in range(max(self.min_ngram_size, 1), min(self.max_ngram_size, len(tokens)) + 1):
            gram = tokens[len(tokens) - size :]
            ends = [e for e in range(size, len(source) + 1) if source[e - size : e] == gram]
            if not ends:
                break
            found = ends[0] if len(ends) == 1 else -1
            if ends[0] == len(source):
                break
        return found

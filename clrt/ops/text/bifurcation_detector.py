"""BifurcationDetector: accepts predicted tokens as far as they match the source, on the host."""

from __future__ import annotations

import numpy as np

from clrt.errors import InputError, ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import agree, need
from clrt.ops.movement.common import fresh_dim, has_input
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits
from clrt.util.fast_dataclass import dataclass


@register
@dataclass(frozen=True)
class BifurcationDetector(Op):
    """Appends predicted tokens to a sequence, up to and including the first wrong one.

    A predicted token is wrong if it differs from the source. Inputs: S source tokens `[S]`, the
    tokens of the sequence, position P in the source where the last match ended, and optionally the
    predicted tokens `[S + 1 - P]`. Outputs: the extended sequence; position in the source after the
    unique occurrence of the tokens' last n-gram, -1 if there is none. Longer n-grams take
    precedence.

    Attributes:
        max_ngram_size: Maximum tokens of an n-gram.
        min_ngram_size: Minimum tokens of an n-gram.

    Source: com.microsoft BifurcationDetector 1.
    """

    max_ngram_size: int = 3
    min_ngram_size: int = 1

    domain = "com.microsoft"
    accuracy = Accuracy.EXACT
    host_traits = HostTraits(has_slow_reference=True)

    def infer(self, inputs: Types) -> list[TensorType]:
        source, tokens, place = (need(inputs, i, self) for i in range(3))
        predicted = inputs[3] if has_input(inputs, 3) else None
        for type_ in (source, tokens, predicted):
            if type_ is not None and not agree(type_, (None,)):
                raise ShapeError(f"BifurcationDetector: tokens {type_} must have one axis.")
        shape = (fresh_dim(),) if has_input(inputs, 3) else tokens.shape
        return [TensorType(DType.INT64, shape), TensorType(DType.INT64, place.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        source, tokens, place, *rest = inputs
        assert source is not None and tokens is not None and place is not None
        predicted = rest[0] if rest else None
        if predicted is not None:
            at = int(place.reshape(-1)[0])
            remaining = source[max(at, 0) :]
            if not 0 <= at <= len(source) or len(predicted) != len(remaining) + 1:
                raise InputError(
                    f"BifurcationDetector: {len(predicted)} predicted tokens and position {at} do "
                    f"not fit a source of {len(source)}; expected source length + 1 - position "
                    "tokens."
                )
            mismatches = np.flatnonzero(predicted[:-1] != remaining)
            num_matching = int(mismatches[0]) if len(mismatches) else len(remaining)
            tokens = np.concatenate([tokens, predicted[: num_matching + 1]])
        return tokens, np.full(place.shape, self._match(source.tolist(), tokens.tolist()), np.int64)

    def _match(self, source: list[int], tokens: list[int]) -> int:
        """Finds the last n-gram of `tokens` in `source`, as long as possible.

        Returns:
            Position in the source after the n-gram; -1 if no n-gram occurs in the source, or if the
            longest one that occurs is not unique.
        """
        position = -1
        for size in range(max(self.min_ngram_size, 1), min(self.max_ngram_size, len(tokens)) + 1):
            gram = tokens[len(tokens) - size :]
            ends = [e for e in range(size, len(source) + 1) if source[e - size : e] == gram]
            if not ends:
                break
            position = ends[0] if len(ends) == 1 else -1
            if ends[0] == len(source):
                break
        return position

"""Recognises attention masks: windows, ALiBi biases, and sinks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np

from clrt.ir.graph import Node, Value
from clrt.ir.op import Array
from clrt.models.decoders.paging.decode_step_probe import MAX_ELEMENTS, STEPS, DecodeStepProbe
from clrt.models.decoders.paging.refusal import refusal
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.util.fast_dataclass import dataclass

# Scores at or below this are masked: they have no weight in a softmax.
_HIDDEN = -1e4
_FEW_KEYS = 1 << 10
MOST_KEYS = 1 << 17
"""Maximum number of keys among which a window is searched."""


@dataclass(frozen=True)
class AttentionPattern:
    """Keys that a token attends to: keys of its sequence up to its own position, in a window.

    Attributes:
        window: Number of preceding keys that a token attends to; -1 for all.
        slopes: float32 `[heads]`: ALiBi slopes, multiplied by a key's distance and subtracted from
            its score; None for none.
        sinks: float32 `[heads]`: score of an additional key without a value; None for none.
    """

    window: int = -1
    slopes: Array | None = field(default=None, compare=False)
    sinks: Array | None = field(default=None, compare=False)


class VisibilityReader:
    """Recognises attention masks by their elements in sample steps.

    Attributes:
        longest: Sequence length in tokens up to which masks were checked.

    Args:
        probe: Evaluates values of the graph that depend only on sizes.
        context: Maximum number of tokens of a sequence; a window of this length counts as none.
    """

    def __init__(self, probe: DecodeStepProbe, context: int) -> None:
        self._probe = probe
        self.longest = min(context, MOST_KEYS)
        self._found: dict[tuple[Value, bool], AttentionPattern] = {}

    def pattern_of(self, node: Node, sink: bool) -> AttentionPattern:
        """Returns the attention pattern of a FusedAttention node over past and new keys.

        Args:
            sink: Whether the node's keys have an additional row of zeros at the end.

        Raises:
            UnsupportedError: The attention is not causal, or adds to scores something other than a
                mask or ALiBi.
        """
        op, mask, lengths = node.op_as(FusedAttention), node.input(3), node.input(4)
        self._check_lengths(node, lengths)
        if mask is None:
            if not (op.is_causal and op.at_end) or sink:
                raise refusal("it is not causal: tokens attend to later ones", node)
            return AttentionPattern(op.left_window)
        if op.is_causal:
            raise refusal("it has a mask and is_causal", node)
        key = (mask, sink)
        if key not in self._found:
            self._found[key] = self._read(node, mask, sink)
        return self._found[key]

    def _check_lengths(self, node: Node, lengths: Value | None) -> None:
        if lengths is None:
            return
        for past, new in STEPS:
            elements = self._probe.at(lengths, past, new)
            if elements is None or elements.size != 1 or int(elements.flat[0]) != past + new:
                raise refusal(f"'{lengths.name}' is not the number of keys", node)

    def _read(self, node: Node, mask: Value, sink: bool) -> AttentionPattern:
        """Returns the attention pattern that a mask implements.

        The pattern follows from the mask of the last token of the longest sequence. It is then
        checked against the masks of all tokens in other steps (`STEPS`).

        Args:
            node: The attention, for messages.
            mask: Input of the attention that is added to scores, or bool.
            sink: Whether the mask's last column belongs to an additional key.

        Raises:
            UnsupportedError: The mask is no `AttentionPattern`, depends on data, or is too large.
        """
        longest = self.longest
        while longest > _FEW_KEYS and self._probe.elements(mask, longest, 1) > MAX_ELEMENTS:
            longest //= 2
        (row,) = self._rows(node, mask, longest - 1, 1, sink)
        seen = int((row.scores[0] > _HIDDEN).sum())
        window = -1 if seen == longest else seen - 1
        if window < 0:
            self.longest = longest
        nearest = row.scores[:, -2:]
        slopes = nearest[:, 1] - nearest[:, 0] if nearest.shape[1] == 2 else np.zeros(1)
        slopes = np.where(np.isfinite(slopes) & (window != 0), slopes, 0)
        steps = list(STEPS)
        if 0 <= window < longest - 4:
            steps.append((window, 3))
        rows = [row, *(r for p, n in steps for r in self._rows(node, mask, p, n, sink))]
        for one in rows:
            one.check(node, window, slopes)
        sinks = row.sinks
        others = [one.sinks for one in rows if one.sinks is not None]
        if sinks is not None and any(not np.array_equal(one, sinks) for one in others):
            raise refusal("its sink differs by token", node)
        heads = self._heads(node)
        float32 = np.float32
        return AttentionPattern(
            window,
            np.broadcast_to(slopes, heads).astype(float32) if slopes.any() else None,
            None if sinks is None else np.broadcast_to(sinks, heads).astype(float32),
        )

    @staticmethod
    def _heads(node: Node) -> tuple[int]:
        return (node.op_as(FusedAttention).num_heads,)

    def _rows(self, node: Node, mask: Value, past: int, new: int, sink: bool) -> Iterator[_MaskRow]:
        """Yields the mask of each token in a step of `new` tokens after `past` tokens.

        Args:
            node: The attention, for messages.
            mask: Input of the attention that is added to scores, or bool.
            past: Number of past tokens.
            new: Number of tokens of the step.
            sink: Whether the mask's last column belongs to an additional key.

        Raises:
            UnsupportedError: The mask depends on data, is too large, or has an unexpected shape.
        """
        elements = self._probe.at(mask, past, new)
        if elements is None:
            raise refusal(f"its mask '{mask.name}' depends on data, or is too large", node)
        if elements.dtype == bool:
            elements = np.where(elements, 0.0, -np.inf)
        scores = np.asarray(elements, np.float64).reshape(
            (1,) * (4 - elements.ndim) + elements.shape
        )
        keys = past + new + int(sink)
        if scores.shape[0] != 1 or scores.shape[2] not in (1, new) or scores.shape[3] != keys:
            raise refusal(f"its mask '{mask.name}' {mask.type} has another shape", node)
        scores = np.broadcast_to(scores, (*scores.shape[:2], new, keys))[0]
        for query in range(new):
            scores_of_query = scores[:, query]
            yield _MaskRow(
                past + query,
                scores_of_query[:, : past + new],
                scores_of_query[:, -1] if sink else None,
            )


@dataclass(frozen=True, eq=False)
class _MaskRow:
    """The mask of one token.

    Attributes:
        place: Position of the token.
        scores: `[heads, keys]`: numbers added to attention scores.
        sinks: `[heads]`: numbers added to the score of an additional key; None if there is none.
    """

    place: int
    scores: Array
    sinks: Array | None

    def check(self, node: Node, window: int, slopes: Array) -> None:
        """Checks that the mask is causal, with the window and ALiBi slopes of a pattern.

        Args:
            node: The attention, for messages.
            window: Number of preceding keys that the token attends to; -1 for all.
            slopes: ALiBi slope of each head, or one slope for all heads.

        Raises:
            UnsupportedError: The mask differs from the pattern.
        """
        distance = self.place - np.arange(self.scores.shape[1])
        seen = (distance >= 0) & ((distance <= window) | (window < 0))
        if ((self.scores > _HIDDEN) != seen).any():
            raise refusal("its mask is neither causal nor a sliding window", node)
        own_score = self.scores[:, self.place : self.place + 1]
        expected = -slopes[:, None] * distance[seen]
        if not np.allclose(self.scores[:, seen] - own_score, expected, 1e-3, 1e-4):
            raise refusal("it adds something other than a mask or ALiBi to scores", node)
        if self.sinks is not None and not np.isfinite(self.sinks).all():
            raise refusal("its sink is masked", node)

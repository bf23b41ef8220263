"""Names of the inputs and outputs of a decoder graph with past keys and values."""

from __future__ import annotations

from clrt.util.fast_dataclass import dataclass

# Symbols of dims: number of tokens of the sequence before this step, and in this step.
PAST, TOKENS = "past", "tokens"


@dataclass(frozen=True)
class PastPair:
    """Names of the past and present keys and values of a layer.

    Attributes:
        key: Input of past keys, `[1, heads, past, size]`.
        value: Input of past values, `[1, heads, past, size]`.
        present_key: Output of past and new keys, `[1, heads, past + tokens, size]`.
        present_value: Output of past and new values, `[1, heads, past + tokens, size]`.
    """

    key: str
    value: str
    present_key: str
    present_value: str


@dataclass(frozen=True)
class DecoderNames:
    """Names of the inputs and outputs of a decoder graph.

    Attributes:
        tokens: Input `[1, tokens]` of token ids.
        logits: Output of logits.
        pasts: Past and present keys and values of each layer.
        mask: Input `[1, past + tokens]`, nonzero for tokens that are not padding; "" if the graph
            has none.
        places: Input `[1, tokens]` of token positions; "" if the graph has none.
    """

    tokens: str
    logits: str
    pasts: tuple[PastPair, ...]
    mask: str = ""
    places: str = ""

    @property
    def data(self) -> frozenset[str]:
        """Names of the inputs of token ids, past keys and past values.

        The other inputs, mask and positions, follow from the numbers of past and new tokens.
        """
        return frozenset({self.tokens, *(n for p in self.pasts for n in (p.key, p.value))})

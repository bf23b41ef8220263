"""What a decoder that is given its past calls its inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass

# The dims of such a graph: one text, of which so many tokens come before this step, and in it.
PAST, TOKENS = "past", "tokens"


@dataclass(frozen=True)
class PastPair:
    """Names of one layer's past keys and values, and of what they become.

    Attributes:
        key, value: Inputs `[1, heads, past, size]`.
        present_key, present_value: Outputs.
    """

    key: str
    value: str
    present_key: str
    present_value: str


@dataclass(frozen=True)
class DecoderNames:
    """Names of inputs and outputs.

    Attributes:
        tokens: The input `[1, tokens]`.
        logits: The output.
        pasts: By layer.
        mask: The input `[1, past + tokens]` that says which tokens are no padding; may be missing.
        places: The input `[1, tokens]` of places; may be missing.
    """

    tokens: str
    logits: str
    pasts: tuple[PastPair, ...]
    mask: str = ""
    places: str = ""

    @property
    def data(self) -> frozenset[str]:
        """The inputs whose elements do not follow from sizes."""
        return frozenset({self.tokens, *(n for p in self.pasts for n in (p.key, p.value))})

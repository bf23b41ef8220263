"""What determines a decoder's graph, as data that families fill in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.attention.page_layout import page_form

# Kinds of layers in config.json: those that see all places, and those with a window.
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, eq=False)
class RopeConfig:
    """A rotary position embedding.

    Attributes:
        frequencies: float32 `[turned / 2]`: the angle of each pair at place 1, scaling included.
        interleaved: Neighbours are pairs, and not elements half of `turned` apart.
        factor: Cosines and sines are multiplied by it (YaRN).
        long: float32 `[turned / 2]`: frequencies for all tokens of a text longer than
            `long_beyond` tokens; None if those of short texts hold for all (LongRoPE).
        long_beyond: Maximum number of tokens of a text that uses `frequencies`; 0 without `long`.
    """

    frequencies: Array
    interleaved: bool = False
    factor: float = 1.0
    long: Array | None = None
    long_beyond: int = 0

    def equals(self, other: RopeConfig) -> bool:
        """Returns whether both turn heads by the same angles."""
        one, two = self.long, other.long
        alike = np.array_equal(self.frequencies, other.frequencies)
        alike = alike and (one is None) == (two is None)
        if one is not None and two is not None:
            alike = alike and np.array_equal(one, two) and self.long_beyond == other.long_beyond
        return alike and self.factor == other.factor and self.interleaved == other.interleaved


@dataclass(frozen=True)
class MoeConfig:
    """A mixture of experts in place of the feed-forward network.

    Attributes:
        count: Experts of a layer; each token goes to `used` of them.
        size: The width of one.
        normalised: Whether the weights of those that are used sum up to 1.
        shared: The width of an expert that all tokens go to; 0 for none.
    """

    count: int
    used: int
    size: int
    normalised: bool = True
    shared: int = 0


@dataclass(frozen=True)
class RelativeBiasConfig:
    """Scores get a bias by head and by how far a key is away (T5).

    Its table `attn_rel_b` is `[buckets, heads]`.

    Attributes:
        buckets: Of distances; where keys lie on both sides, half of them are for each.
        reach: The last bucket has all distances from here on.
        each: Each layer has a table of its own; else that of layer 0 serves all.
    """

    buckets: int
    reach: int
    each: bool = False


@dataclass(frozen=True)
class DecoderConfig:
    """The geometry of a decoder, and where families differ. The defaults are Llama's.

    Attributes:
        family: The model type.
        vocabulary, hidden, layers, heads, kv_heads, head_size, intermediate: Sizes.
        context: Places at most.
        norm: RMSNormalization, or LayerNormalization; its scale is optional.
        norm_shift: Added to the scales of norms (Gemma stores them less 1).
        epsilon: Added to their mean square.
        norms: Whether a part of a layer is normalised "before" it, "after" it, or "both".
        parallel: Attention and feed-forward network both read the layer's input.
        qk_norm: Q and K are normalised by "head" with one scale for all, by "heads" with one for
            each, by whole "row", or not.
        activation: transformers' name for it.
        gate_limit: Gates are no more than it, what they multiply is within it (gpt-oss); 0 for no
            limit.
        gated: The feed-forward network multiplies its activation with a second projection.
        rotaries: The rotary embedding of each layer; None for a layer without.
        places: Rows of the table of places, where these have embeddings of their own; else 0.
        slopes: By head, how fast scores fall with distance (ALiBi).
        relative: Scores get a bias by distance (T5).
        windows: How many keys before its place a token sees, by layer; -1 for all.
        scale: Of scores; None for head_size ** -0.5.
        softcap, final_softcap: Scores and logits are limited to these; 0 for no limit.
        embedding_scale, residual_scale, logit_scale: Factors of these.
        clip: Q, K and V are clipped to it; 0 for no limit.
        experts: In place of the feed-forward network.
        encoder: The layers that read a source, whose states the decoder's cross-attention sees;
            None for a decoder alone. Of these fields those hold that are no decoder's alone: its
            `context` is the most places of a source.
        features: Of an encoder: the numbers of a frame, where it reads frames and no tokens.
        stride: Of an encoder: so many frames make a place.
        long_beyond: Maximum number of tokens of a text that uses the rotary frequencies of short
            texts; 0 if one set of frequencies holds for all (`RopeConfig.long`).
    """

    family: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    context: int
    norm: Literal["rms", "layer"] = "rms"
    norm_shift: float = 0.0
    epsilon: float = 1e-6
    norms: Literal["before", "after", "both"] = "before"
    parallel: bool = False
    qk_norm: Literal["none", "head", "heads", "row"] = "none"
    activation: str = "silu"
    gate_limit: float = 0.0
    gated: bool = True
    rotaries: tuple[RopeConfig | None, ...] = ()
    places: int = 0
    slopes: tuple[float, ...] = ()
    relative: RelativeBiasConfig | None = None
    windows: tuple[int, ...] = ()
    scale: float | None = None
    softcap: float = 0.0
    final_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    clip: float = 0.0
    experts: MoeConfig | None = None
    encoder: DecoderConfig | None = None
    features: int = 0
    stride: int = 1
    long_beyond: int = 0

    def __post_init__(self) -> None:
        beyond = {r.long_beyond for r in self.rotaries if r is not None and r.long is not None}
        if len(beyond) > 1:
            raise UnsupportedError(
                f"Layers of this {self.family} model change to LongRoPE's long factors at texts of "
                f"{min(beyond)} and of {max(beyond)} tokens; clrt knows one length for all layers."
            )
        if beyond:
            object.__setattr__(self, "long_beyond", beyond.pop())

    def window(self, layer: int) -> int:
        """How many keys before its place a token sees in a layer; -1 for all."""
        return self.windows[layer] if self.windows else -1

    def rotary_of(self, layer: int) -> RopeConfig | None:
        """The rotary embedding of a layer."""
        return self.rotaries[layer] if self.rotaries else None

    @property
    def score_scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_size**-0.5 if self.scale is None else self.scale

    def page_elements(self, cache: DType) -> int:
        """Elements of a page of a cache of that dtype: keys and values of all layers."""
        return self.layers * self.kv_heads * page_form(self.head_size, cache).head_elements

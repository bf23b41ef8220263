"""The configuration of a decoder's graph, filled in by model families."""

from __future__ import annotations

from typing import Literal

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.kv_cache_sizes import HEAD_SIZE_STEP, MAX_HEAD_SIZE
from clrt.ir.op import Array
from clrt.util.fast_dataclass import dataclass

# Kinds of layers in config.json: attention to all positions, or to a sliding window.
FULL, SLIDING = "full_attention", "sliding_attention"
# Sanity limits for counts in configurations.
MAX_HEADS, MAX_EXPERTS = 1 << 16, 1 << 16


def check_head_size(size: int, file: object) -> None:
    """Checks that attention kernels support heads of `size` elements.

    Args:
        file: Path of the model's configuration, for the message.

    Raises:
        UnsupportedError: No kernel supports this size.
    """
    if size > MAX_HEAD_SIZE or size % HEAD_SIZE_STEP:
        raise UnsupportedError(
            f"{file} has heads of {size} elements, but clrt supports multiples of "
            f"{HEAD_SIZE_STEP} up to {MAX_HEAD_SIZE}; use another model."
        )


def alibi_slopes(heads: int, max_bias: float = 8.0) -> tuple[float, ...]:
    """Returns the ALiBi slope of each head, by which a key's distance lowers its score.

    With n the largest power of two <= heads, the first n slopes are the powers 1 to n of
    2 ** (-max_bias / n), the others odd powers of 2 ** (-max_bias / 2n).

    Args:
        heads: Number of heads.
        max_bias: Sets the smallest of the first n slopes, 2 ** -max_bias.
    """
    whole = 1 << (heads.bit_length() - 1)
    steps = [*range(2, 2 * whole + 1, 2), *range(1, 2 * (heads - whole), 2)]
    return tuple(2.0 ** (-max_bias / whole * step / 2) for step in steps)


@dataclass(frozen=True, eq=False)
class RopeConfig:
    """A rotary position embedding (RoPE).

    Attributes:
        frequencies: float32 `[rotary_dim / 2]`: angle of each pair at position 1, scaling included;
            `rotary_dim` is the number of rotated elements of a head.
        interleaved: Whether the elements of a pair are adjacent; if not, `rotary_dim / 2` apart.
        factor: Multiplier of cosines and sines (YaRN).
        long: Frequencies for sequences of more than `long_beyond` tokens (LongRoPE), float32
            `[rotary_dim / 2]`; None if `frequencies` hold for all lengths.
        long_beyond: Maximum number of tokens of a sequence that uses `frequencies`; 0 if `long` is
            None.
    """

    frequencies: Array
    interleaved: bool = False
    factor: float = 1.0
    long: Array | None = None
    long_beyond: int = 0

    def equals(self, other: RopeConfig) -> bool:
        """Returns whether `other` rotates heads by the same angles, pairs and multiplier."""
        one, two = self.long, other.long
        equal = np.array_equal(self.frequencies, other.frequencies)
        equal = equal and (one is None) == (two is None)
        if one is not None and two is not None:
            equal = equal and np.array_equal(one, two) and self.long_beyond == other.long_beyond
        return equal and self.factor == other.factor and self.interleaved == other.interleaved


@dataclass(frozen=True)
class MoeConfig:
    """A mixture of experts that replaces the feed-forward network of a layer.

    Attributes:
        count: Number of experts per layer.
        used: Number of experts that each token is routed to.
        size: Intermediate size of an expert.
        normalised: Whether the router weights of a token's experts are normalised to sum 1.
        shared: Intermediate size of the shared expert that all tokens use; 0 for none.
    """

    count: int
    used: int
    size: int
    normalised: bool = True
    shared: int = 0


@dataclass(frozen=True)
class RelativeBiasConfig:
    """A bias of attention scores by head and relative position (T5).

    Its table `attn_rel_b` is `[buckets, heads]`.

    Attributes:
        buckets: Number of buckets of distances; an encoder uses half of them for later positions.
        reach: Minimum distance of the last bucket, which also holds all longer distances.
        each: Whether each layer has its own table; if not, all layers use the table of layer 0.
    """

    buckets: int
    reach: int
    each: bool = False


@dataclass(frozen=True)
class DecoderConfig:
    """The configuration of a decoder's graph; the defaults are Llama's.

    Attributes:
        family: Model type (Hugging Face) or architecture (GGUF).
        vocabulary: Number of tokens.
        hidden: Elements of a token between layers.
        layers: Number of layers.
        heads: Number of query heads.
        kv_heads: Number of key heads, and of value heads.
        head_size: Elements of a head.
        intermediate: Elements of a token inside a feed-forward network.
        context: Maximum number of positions.
        norm: RMSNormalization, or LayerNormalization with an optional scale.
        norm_shift: Number added to the stored scales of norms (Gemma stores them minus 1).
        epsilon: Epsilon of norms.
        norms: Whether norms are "before" or "after" attention and feed-forward network, or "both".
        parallel: Whether attention and feed-forward network both read the layer's input.
        qk_norm: Norm of Q and K: "head" normalises each head, with one scale for all heads; "heads"
            does so with a scale per head; "row" normalises all heads of a token together; "none".
        activation: Activation by transformers' name.
        gate_limit: Upper limit of gates, and of the absolute value of the up projection (gpt-oss);
            0 for none.
        gated: Whether the activation is multiplied by a second projection (as in SwiGLU).
        rotaries: Rotary embedding of each layer, None for a layer without one; () if no layer has
            one.
        places: Number of learned position embeddings; 0 for none.
        slopes: ALiBi slope of each head; () for none.
        relative: Bias of scores by relative position (T5); None for none.
        windows: Number of preceding keys that a token attends to, by layer, -1 for all; () if all
            layers attend to all.
        scale: Multiplier of attention scores; None for head_size ** -0.5.
        softcap: Soft limit of attention scores; 0 for none.
        final_softcap: Soft limit of logits; 0 for none.
        embedding_scale: Multiplier of embeddings.
        residual_scale: Multiplier of what attention and network add to the residual.
        logit_scale: Multiplier of logits.
        clip: Limit of the absolute values of Q, K and V; 0 for none.
        experts: Mixture of experts that replaces the feed-forward network; None for none.
        encoder: The encoder whose states cross-attention reads; None for a decoder alone. Its
            `context` is the maximum number of positions of an input sequence; fields that only
            decoders use do not apply to it.
        features: Features per frame of an encoder of audio; 0 if the encoder reads tokens.
        stride: Frames per position of an encoder of audio.
        long_beyond: Maximum number of tokens of a sequence that uses `RopeConfig.frequencies`;
            longer ones use `RopeConfig.long`. 0 if `frequencies` hold for all lengths.
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
                f"{min(beyond)} and of {max(beyond)} tokens; clrt supports only one length for "
                "all layers."
            )
        if beyond:
            object.__setattr__(self, "long_beyond", beyond.pop())

    def window(self, layer: int) -> int:
        """Returns the number of preceding keys that a token of a layer attends to; -1 for all."""
        return self.windows[layer] if self.windows else -1

    def rotary_of(self, layer: int) -> RopeConfig | None:
        """Returns the rotary embedding of a layer; None if it has none."""
        return self.rotaries[layer] if self.rotaries else None

    @property
    def score_scale(self) -> float:
        """Multiplier of attention scores: `scale`, or head_size ** -0.5 if that is None."""
        return self.head_size**-0.5 if self.scale is None else self.scale

    def page_elements(self, cache: DType) -> int:
        """Returns the number of elements of a KV page: keys and values of all layers.

        Args:
            cache: Dtype of the KV cache.
        """
        from clrt.ops.attention.page_layout import page_form  # imported late to speed up the start

        return self.layers * self.kv_heads * page_form(self.head_size, cache).head_elements

"""Decoders as text encoders: all tokens of a batch of texts at once, without a cache."""

from __future__ import annotations

from pathlib import Path

from clrt.errors import UnsupportedError
from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.models.decoders.config import read_decoder
from clrt.models.decoders.decoder import DecoderConfig, RopeConfig
from clrt.models.decoders.graph import DecoderGraph
from clrt.models.decoders.huggingface import read_folder
from clrt.models.decoders.layers import DecoderBuilder
from clrt.models.decoders.weight_source import WeightSource
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.attention.fused_rotary import FusedRotary
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.views import Reshape, Unsqueeze
from clrt.ops.norm.rms_normalization import RMSNormalization
from clrt.ops.pointwise.table import Add, Mul, Neg


def sequence_graph(folder: Path) -> Graph:
    """Builds the graph of a decoder over whole sequences without a cache, for text embeddings.

    Inputs: `input_ids` and `attention_mask`, int64 `[batch, sequence]`, padded on the right;
    attention is causal, so padding changes nothing. Output: `last_hidden_state` float32 `[batch,
    sequence, hidden]`, after the last norm.

    Args:
        folder: Hugging Face folder of a decoder.

    Raises:
        ModelError: A file or tensor is missing or damaged.
        UnsupportedError: The family or an option is unsupported, or attention is not causal.
    """
    decoder, _, config = read_decoder(folder)
    if not config.flag("is_causal", True):
        raise config.unsupported("is_causal", "tokens attend to earlier tokens only")
    for what, found in (
        ("an encoder", decoder.encoder),
        ("scores that fall with distance", decoder.slopes),
        ("biases by distance", decoder.relative),
        ("other rotary frequencies for long texts", decoder.long_beyond),
    ):
        if found:
            raise UnsupportedError(
                f"The {decoder.family} of '{folder}' has {what}, which is not supported for "
                "vectors of texts; export the model to ONNX."
            )
    decoder, source = read_folder(folder)
    if "blk.0.attn_sinks.weight" in source:
        raise config.unsupported("model_type", "attention without sinks is")
    return _SequenceGraph(decoder, source).graph()


class _SequenceGraph(DecoderGraph):
    """Builds the graph of a decoder over whole sequences; rows are the tokens of all sequences."""

    def __init__(self, decoder: DecoderConfig, source: WeightSource) -> None:
        self.decoder = decoder
        self.build = build = DecoderBuilder(source, decoder)
        self.batch, self.places = symbol("batch"), symbol("sequence")
        self.ids, self.mask = (
            build.input(name, DType.INT64, (self.batch, self.places))
            for name in ("input_ids", "attention_mask")
        )
        self.cross = None
        self._tables = {}

    def graph(self) -> Graph:
        """Builds the graph, with the inputs and output of `sequence_graph`. Call it once."""
        decoder, build = self.decoder, self.build
        hidden = self._embeddings()
        for layer in range(decoder.layers):
            hidden = self._layer(hidden, layer)
        state = self._by_text(build.norm(hidden, "output_norm", decoder.hidden), decoder.hidden)
        state.name = "last_hidden_state"
        return build.graph(decoder.family, [self.ids, self.mask], [state], [state.name])

    def _column(self, index: int) -> Value:
        """Returns the token id (index 0) or the position (another index) of each row.

        Returns:
            int64 `[batch * sequence]`.
        """
        build = self.build
        rows = self.batch * self.places
        if index == 0:
            return build.at("ids").reshaped(self.ids, rows)
        nothing = build("places", Mul(), self.ids, build.numbers(0))
        return build.at("places").reshaped(build("places", Add(), nothing, self._range()), rows)

    def _range(self) -> Value:
        return self.build.at("places").count_up(self.places)

    def _by_text(self, x: Value, width: int) -> Value:
        """Reshapes x, a row per token of all sequences, to `[batch, sequence, width]`."""
        return self.build.at("rows").reshaped(x, self.batch, self.places, width)

    def _attention(self, x: Value, layer: int) -> Value:
        """Adds the causal self-attention of a layer over whole texts, without a cache.

        Args:
            x: `[batch * sequence, hidden]`.
            layer: Index of the layer.
        """
        decoder, build, path = self.decoder, self.build, f"blk.{layer}"
        heads, kv_heads, size = decoder.heads, decoder.kv_heads, decoder.head_size
        q_end, k_end = heads * size, (heads + kv_heads) * size
        width = k_end + kv_heads * size
        qkv = build.qkv_projection(x, path)
        rotary = decoder.rotary_of(layer)
        operands = [(0, q_end, heads, "attn_q_norm"), (q_end, k_end, kv_heads, "attn_k_norm")]
        parts = [self._rotated_heads(qkv, *operand, path, rotary) for operand in operands]
        value = self._by_text(build.columns(qkv, k_end, width, path), kv_heads * size)
        attention = FusedAttention(
            heads, kv_heads, size, size,
            scale=decoder.score_scale, is_causal=True,
            left_window=decoder.window(layer), softcap=decoder.softcap,
        )  # fmt: skip
        mixed = build(path, attention, *parts, value)
        mixed = build.at(path).reshaped(mixed, self.batch * self.places, heads * size)
        return build.linear(mixed, f"{path}.attn_output", heads * size, decoder.hidden)

    def _rotated_heads(
        self, qkv: Value, first: int, end: int, heads: int, norm: str, path: str,
        rotary: RopeConfig | None,
    ) -> Value:  # fmt: skip
        """Returns the heads of Q or K, normalised and rotated, `[batch, sequence, heads * size]`.

        Args:
            qkv: Q, K and V side by side, `[batch * sequence, width]`.
            first: Index of the first column of Q or K in `qkv`.
            end: Index after the last column of Q or K.
            heads: Number of heads of Q or K.
            norm: Last component of the path of the heads' norm, used if `qk_norm` is "head".
            path: The layer: "blk.N".
            rotary: Rotary embedding of the layer; None for none.
        """
        decoder, build, size = self.decoder, self.build, self.decoder.head_size
        x = build.columns(qkv, first, end, path)
        if decoder.qk_norm == "head":
            scale = build.norm_scale(f"{path}.{norm}.weight", size)
            x = build(path, Reshape(), x, build.ints(-1, heads, size))
            x = build(path, RMSNormalization(epsilon=decoder.epsilon), x, scale)
        if rotary is None:
            return self._by_text(x, heads * size)
        rotary_dim = 2 * len(rotary.frequencies)
        if rotary_dim == size and not rotary.interleaved:
            x = self._by_text(x, heads * size)
            return build(path, FusedRotary(heads, size), x, *self._angles(rotary))
        x = build.at(path).reshaped(x, self.batch, self.places, heads, size)
        x = self._rotate_pairs(x, rotary_dim, rotary, path)
        return build.at(path).reshaped(x, self.batch, self.places, heads * size)

    def _rotate_pairs(self, x: Value, rotary_dim: int, rotary: RopeConfig, path: str) -> Value:
        """Rotates heads whose pairs are interleaved, or whose last elements are not rotated.

        Args:
            x: `[batch, sequence, heads, size]`.
            rotary_dim: Number of rotated elements of a head.
            rotary: Rotary embedding of the layer.
            path: The layer: "blk.N".
        """
        build, half, size = self.build, rotary_dim // 2, self.decoder.head_size
        step = 2 if rotary.interleaved else 1
        bounds = (
            ((0, rotary_dim), (1, rotary_dim)) if step == 2 else ((0, half), (half, rotary_dim))
        )
        a, b = (build.at(path).slice(x, first, end, -1, step) for first, end in bounds)
        cos, sin = (build(path, Unsqueeze(), t, build.ints(1)) for t in self._halves(rotary))
        less = build(path, Neg(), sin)
        y0 = build(path, Add(), build(path, Mul(), a, cos), build(path, Mul(), b, less))
        y1 = build(path, Add(), build(path, Mul(), b, cos), build(path, Mul(), a, sin))
        if step == 2:
            y0, y1 = (build(path, Unsqueeze(), y, build.ints(-1)) for y in (y0, y1))
        both = build(path, Concat(-1), y0, y1)
        if step == 2:
            heads = x.shape[2] if x.shape else 1
            both = build.at(path).reshaped(both, self.batch, self.places, heads, rotary_dim)
        if rotary_dim == size:
            return both
        return build(path, Concat(-1), both, build.at(path).slice(x, rotary_dim, size, -1))

    def _halves(self, rotary: RopeConfig) -> list[Value]:
        """Returns cosines and sines of all positions, each `[sequence, rotary_dim / 2]`."""
        frequencies = self.build.constant(rotary.frequencies)
        return self.build.rotary_tables(self._range(), frequencies, rotary.factor)

    def _angles(self, rotary: RopeConfig) -> tuple[Value, Value]:
        """Returns (cosines, sines) of all positions, each `[sequence, size]`.

        Both halves of a row are equal, because they apply to both halves of a head.
        """
        if rotary not in self._tables:
            halves = self._halves(rotary)
            cos, sin = (self.build("rotary", Concat(1), t, t) for t in halves)
            self._tables[rotary] = cos, sin
        return self._tables[rotary]

"""Builds the graph of a decoder with a paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.kv_cache_sizes import MAX_SLABS
from clrt.models.decoders.decoder import DecoderConfig, RopeConfig
from clrt.models.decoders.encoder_graph import EncoderGraph
from clrt.models.decoders.feed_forward import feed_forward
from clrt.models.decoders.layers import DecoderBuilder
from clrt.models.decoders.sampling_head import sample_next
from clrt.models.decoders.weight_source import WeightSource
from clrt.ops.attention.paged_attention import PagedAttention
from clrt.ops.attention.rotate_and_cache import RotateAndCache
from clrt.ops.movement.gather import Gather
from clrt.ops.pointwise.table import Add

_TOKEN, _PLACE = 0, 2  # columns of the graph input `step`: token id and position


def decoder_graph(
    decoder: DecoderConfig, source: WeightSource, cache: DType = DType.FLOAT32
) -> Graph:
    """Builds the graph of a decoder with a paged KV cache.

    Inputs:
    `step`, int32 `[tokens, 3]`: (id, sequence, position) of each token;
    `table`, int32 `[sequences, pages]`: page numbers of each sequence;
    `rows`, int32 `[rows]`: indices of the tokens whose logits are computed;
    the inputs of SampleTokens; and the slabs of the cache (see `clrt.ops.attention.paged_cache`).

    Outputs:
    `token`, int32 `[rows]`: next tokens; `logprob`, float32 `[rows]`: their log-probabilities;
    `logits`, float32 `[rows, vocabulary]`;
    `hidden`, float32 `[rows, hidden]`: input of the head;
    `kept0`, `kept1`, …: the updated slabs.

    If the frequencies of rotary embeddings depend on the length of a sequence (`RopeConfig.long`),
    there is an input `long`, int32 `[tokens]`: 1 for tokens of long sequences, else 0.

    An encoder adds its inputs (`EncoderGraph`), and an input `cross`, int32 `[tokens, 3]`: (unused,
    row of the page table for the token's input sequence, last position of that input sequence). It
    also adds an output `states`, float32 `[batch, places, hidden]`. Tokens of a run can attend to
    input sequences that are encoded in the same run.

    Args:
        decoder: The configuration.
        source: The weights.
        cache: Dtype of the cache: float32, float16, bfloat16, or uint8 for 8 bits.

    Raises:
        ModelError: A tensor is missing, or has another shape.
        UnsupportedError: The activation is unknown.
    """
    return DecoderGraph(decoder, source, cache).graph()


class DecoderGraph:
    """Builds the graph of a decoder with a paged KV cache.

    Arguments are as in `decoder_graph`: the configuration, the weights and the cache's dtype.
    """

    def __init__(self, decoder: DecoderConfig, source: WeightSource, cache: DType) -> None:
        self.decoder = decoder
        self.build = build = DecoderBuilder(source, decoder)
        tokens, sequences = symbol("tokens"), symbol("sequences")
        self.step = build.input("step", DType.INT32, (tokens, 3))
        self.table = build.input("table", DType.INT32, (sequences, symbol("pages")))
        self.rows = build.input("rows", DType.INT32, (symbol("rows"),))
        self.slabs = [
            build.input(f"slab{s}", cache, (symbol(f"pages{s}"), decoder.page_elements(cache)))
            for s in range(MAX_SLABS)
        ]
        self._tables: dict[RopeConfig, tuple[Value, Value]] = {}
        self.long = build.input("long", DType.INT32, (tokens,)) if decoder.long_beyond else None
        self.encoder = None if decoder.encoder is None else EncoderGraph(build)
        self.cross = None
        if self.encoder is not None:
            self.cross = build.input("cross", DType.INT32, (tokens, 3))

    def graph(self) -> Graph:
        """Builds the graph, with the inputs and outputs of `decoder_graph`. Call it once."""
        decoder, build, slabs = self.decoder, self.build, list(self.slabs)
        states, more = None, []
        if self.encoder is not None and self.cross is not None:
            more = [*self.encoder.inputs, self.cross]
            states = self.encoder.states()
            self.slabs = self.encoder.cached(states, self.table, self.slabs)
            states = self.encoder.by_source(states)
        hidden = self._embeddings()
        for layer in range(decoder.layers):
            hidden = self._layer(hidden, layer)
        wanted = build("output", Gather(), hidden, self.rows)
        state = build.norm(wanted, "output_norm", decoder.hidden)
        head = "output" if "output.weight" in build.source else "token_embd"
        logits = build.linear(state, head, decoder.hidden, decoder.vocabulary)
        logits = build.scaled(logits, decoder.logit_scale, "output")
        logits = build.soft_capped(logits, decoder.final_softcap, "output")
        places = self._column(_PLACE)
        asked, token, logprob = sample_next(build, logits, places, self.rows, decoder.vocabulary)
        more += [] if self.long is None else [self.long]
        inputs = [self.step, self.table, self.rows, *asked, *more, *slabs]
        outputs = {"token": token, "logprob": logprob, "logits": logits, "hidden": state}
        outputs |= {} if states is None else {"states": states}
        outputs |= {f"kept{s}": slab for s, slab in enumerate(self.slabs)}
        return build.graph(decoder.family, inputs, outputs.values(), list(outputs))

    def _embeddings(self) -> Value:
        """Adds token embeddings, plus learned position embeddings and a norm if the model has them.

        Returns:
            float32 `[tokens, hidden]`.
        """
        decoder, build = self.decoder, self.build
        hidden = build.rows("token_embd", decoder.vocabulary, decoder.hidden, self._column(_TOKEN))
        hidden = build.scaled(hidden, decoder.embedding_scale, "token_embd")
        if decoder.places:
            places = self._column(_PLACE)
            more = build.rows("position_embd", decoder.places, decoder.hidden, places)
            hidden = build("position_embd", Add(), hidden, more)
        if "token_embd_norm.weight" in build.source:
            hidden = build.norm(hidden, "token_embd_norm", decoder.hidden)
        return hidden

    def _column(self, index: int) -> Value:
        return self.build("step", Gather(axis=1), self.step, self.build.numbers(index))

    def _layer(self, x: Value, layer: int) -> Value:
        """Adds a decoder layer: attention, feed-forward network, norms and residuals.

        Args:
            x: `[tokens, hidden]`.
            layer: Index of the layer.

        Returns:
            Output of the layer, `[tokens, hidden]`.
        """
        decoder, build, path = self.decoder, self.build, f"blk.{layer}"
        size, before = decoder.hidden, decoder.norms != "after"
        read = build.norm(x, f"{path}.attn_norm", size) if before else x
        mixed = self._attention(read, layer)
        if decoder.norms != "before":
            mixed = build.norm(mixed, f"{path}.post_attention_norm", size)
        mixed = build.scaled(mixed, decoder.residual_scale, path)
        after = x if decoder.parallel else build(path, Add(), x, mixed)
        if self.cross is not None:
            after = build(path, Add(), after, self._cross_attention(after, layer))
        one = decoder.parallel and f"{path}.ffn_norm.weight" not in build.source
        if not one:  # otherwise attention and network share a norm
            read = build.norm(after, f"{path}.ffn_norm", size) if before else after
        fed = feed_forward(build, read, path)
        if decoder.norms != "before":
            fed = build.norm(fed, f"{path}.post_ffw_norm", size)
        fed = build.scaled(fed, decoder.residual_scale, path)
        if decoder.parallel:
            fed = build(path, Add(), fed, mixed)
        return build(path, Add(), after, fed)

    def _attention(self, x: Value, layer: int) -> Value:
        """Adds the self-attention of a layer, which reads past keys and values from KV pages.

        Args:
            x: `[tokens, hidden]`.
            layer: Index of the layer.

        Returns:
            The output projection, `[tokens, hidden]`.
        """
        decoder, build, path = self.decoder, self.build, f"blk.{layer}"
        heads, kv_heads, size = decoder.heads, decoder.kv_heads, decoder.head_size
        projected = build.qkv_projection(x, path)
        rotary = decoder.rotary_of(layer)
        tables: Sequence[Value | None] = (None, None) if rotary is None else self._angles(rotary)
        scales: Sequence[Value | None] = (None, None)
        if decoder.qk_norm == "head":
            names = (f"{path}.attn_q_norm.weight", f"{path}.attn_k_norm.weight")
            scales = [build.norm_scale(name, size) for name in names]
        geometry = (heads, kv_heads, size, layer)
        interleaved = rotary is not None and rotary.interleaved
        cached = RotateAndCache(*geometry, interleaved=interleaved, epsilon=decoder.epsilon)
        given = (projected, self.step, self.table, *tables, *scales, *self.slabs)
        q, *self.slabs = build.all(path, cached, *given)
        attention = PagedAttention(
            *geometry,
            scale=decoder.score_scale,
            left_window=decoder.window(layer),
            softcap=decoder.softcap,
        )
        slopes = build.numbers(decoder.slopes, DType.FLOAT32) if decoder.slopes else None
        sinks = f"{path}.attn_sinks.weight"
        sink = build.weight(sinks, heads) if sinks in build.source else None
        biases = None
        if decoder.relative is not None:
            table_path = path if decoder.relative.each else "blk.0"
            biases = build.distance_biases(table_path, -np.arange(decoder.relative.reach + 1))
        given = (q, self.step, self.table, slopes, sink, biases, *self.slabs)
        mixed = build(path, attention, *given)
        return build.linear(mixed, f"{path}.attn_output", heads * size, decoder.hidden)

    def _cross_attention(self, x: Value, layer: int) -> Value:
        """Adds cross-attention: each token attends to the encoder states of its input sequence.

        Args:
            x: `[tokens, hidden]`.
            layer: Index of the layer.

        Returns:
            The output projection, `[tokens, hidden]`.
        """
        decoder, build, path = self.decoder, self.build, f"blk.{layer}"
        size, width = decoder.hidden, decoder.heads * decoder.head_size
        read = build.norm(x, f"{path}.cross_attn_norm", size)
        q = build.linear(read, f"{path}.cross_attn_q", size, width)
        geometry = (decoder.heads, decoder.kv_heads, decoder.head_size, layer)
        attention = PagedAttention(*geometry, scale=decoder.score_scale)
        given = (q, self.cross, self.table, None, None, None, *self.slabs)
        mixed = build(f"{path}/cross", attention, *given)
        return build.linear(mixed, f"{path}.cross_attn_output", width, size)

    def _angles(self, rotary: RopeConfig) -> tuple[Value, Value]:
        """Returns (cosines, sines) of the tokens' positions, each `[tokens, rotary_dim / 2]`."""
        if rotary not in self._tables:
            places, frequencies = self._column(_PLACE), self._frequencies(rotary)
            cos, sin = self.build.rotary_tables(places, frequencies, rotary.factor)
            self._tables[rotary] = cos, sin
        return self._tables[rotary]

    def _frequencies(self, rotary: RopeConfig) -> Value:
        """Returns the rotary frequencies of each token, `[tokens, rotary_dim / 2]`.

        Returns `[rotary_dim / 2]` if they are the same for all tokens.
        """
        if rotary.long is None or self.long is None:
            return self.build.constant(rotary.frequencies)
        both = self.build.constant(np.stack([rotary.frequencies, rotary.long]))
        return self.build("rotary", Gather(), both, self.long)

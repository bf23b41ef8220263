"""The encoder of an encoder-decoder model; writes cross-attention keys and values to the cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clrt.ir.dims import Shape, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.models.decoders.audio_frontend import embedded_frames
from clrt.models.decoders.feed_forward import feed_forward
from clrt.models.decoders.layers import DecoderBuilder
from clrt.ops.attention.cache_states import CacheStates
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.movement.gather import Gather
from clrt.ops.pointwise.table import Add
from clrt.ops.pointwise.variadic import Max, Min
from clrt.ops.tensor.range import Range


class EncoderGraph:
    """Builds the encoder of an encoder-decoder model.

    The encoder reads a padded batch of input sequences (sources). For each layer of the decoder,
    the keys and values of its cross-attention are written to the paged cache, one row of the page
    table per source. Nothing runs for an empty batch.

    Its graph inputs are, with `places` positions per source, padding included:
    `source`: token ids int32 `[batch, places]`, or audio frames float32 `[batch, stride * places,
    features]`;
    `lengths`: number of positions of each source without padding, int32 `[batch]`;
    `writes`: where each position is cached, int32 `[batch, places, 3]`: (unused, row of the page
    table, position), with row -1 for padding.

    Attributes:
        inputs: The graph inputs source, lengths and writes, in this order.

    Args:
        build: Builder of the decoder's graph, for a decoder that has an encoder.
    """

    def __init__(self, build: DecoderBuilder) -> None:
        decoder = build.decoder
        assert decoder.encoder is not None
        self.decoder, self.encoder = decoder, decoder.encoder
        self.build = build.of(decoder.encoder)
        self.batch, self.places = symbol("batch"), symbol("places")
        self.source = build.input("source", *self._source_form())
        self.lengths = build.input("lengths", DType.INT32, (self.batch,))
        self.writes = build.input("writes", DType.INT32, (self.batch, self.places, 3))
        self.inputs = [self.source, self.lengths, self.writes]
        self._biases: dict[str, Value] = {}

    def states(self) -> Value:
        """Adds the encoder's layers and returns their output, `[batch * places, hidden]`."""
        encoder, build = self.encoder, self.build
        hidden = self._embeddings()
        for layer in range(encoder.layers):
            hidden = self._layer(hidden, f"enc.blk.{layer}")
        return build.norm(hidden, "enc.output_norm", encoder.hidden)

    def by_source(self, states: Value) -> Value:
        """Reshapes encoder states `[batch * places, hidden]` to `[batch, places, hidden]`."""
        return self._shaped("states", states, self.encoder.hidden)

    def cached(self, states: Value, table: Value, slabs: Sequence[Value]) -> list[Value]:
        """Writes the cross-attention keys and values of every decoder layer to the paged cache.

        Args:
            states: Encoder states, `[batch * places, hidden]`.
            table: Page table, int32 `[sequences, pages]`: page numbers of each sequence.
            slabs: Slabs of the paged cache.

        Returns:
            The updated slabs.
        """
        decoder, build, updated = self.decoder, self.build, list(slabs)
        width = decoder.kv_heads * decoder.head_size
        step = build.at("writes").reshaped(self.writes, self.batch * self.places, 3)
        for layer in range(decoder.layers):
            path = f"blk.{layer}.cross_attn"
            parts = {f"{path}_k": width, f"{path}_v": width}
            x = build.joined_linear(states, f"{path}_kv", parts, self.encoder.hidden)
            op = CacheStates(decoder.heads, decoder.kv_heads, decoder.head_size, layer)
            updated = build.all(path, op, x, step, table, *updated)
        return updated

    def _source_form(self) -> tuple[DType, Shape]:
        encoder = self.encoder
        if not encoder.features:
            return DType.INT32, (self.batch, self.places)
        return DType.FLOAT32, (self.batch, encoder.stride * self.places, encoder.features)

    def _embeddings(self) -> Value:
        encoder, build = self.encoder, self.build
        if encoder.features:
            return embedded_frames(build, self.source, self.batch, self.places)
        flat = build.at("source").reshaped(self.source, self.batch * self.places)
        hidden = build.rows("token_embd", encoder.vocabulary, encoder.hidden, flat)
        return build.scaled(hidden, encoder.embedding_scale, "token_embd")

    def _layer(self, x: Value, path: str) -> Value:
        encoder, build = self.encoder, self.build
        read = build.norm(x, f"{path}.attn_norm", encoder.hidden)
        after = build(path, Add(), x, self._attention(read, path))
        read = build.norm(after, f"{path}.ffn_norm", encoder.hidden)
        return build(path, Add(), after, feed_forward(build, read, path))

    def _attention(self, x: Value, path: str) -> Value:
        """Returns the output of self-attention within each source, `[batch * places, hidden]`.

        Args:
            x: Input of the attention, `[batch * places, hidden]`.
            path: The layer: "enc.blk.N".
        """
        encoder, build = self.encoder, self.build
        width, heads = encoder.heads * encoder.head_size, encoder.heads
        qkv = self._shaped(path, build.qkv_projection(x, path), 3 * width)
        attention = FusedAttention.plain(
            heads,
            encoder.head_size,
            k_offset=width,
            v_offset=2 * width,
            scale=encoder.score_scale,
            by_distance=encoder.relative is not None,
        )
        bias = self._bias(path) if encoder.relative is not None else None
        mixed = build(path, attention, qkv, qkv, qkv, bias, self.lengths)
        mixed = build.at(path).reshaped(mixed, self.batch * self.places, width)
        return build.linear(mixed, f"{path}.attn_output", width, encoder.hidden)

    def _shaped(self, path: str, x: Value, width: int) -> Value:
        """Reshapes `x`, `[batch * places, width]`, to `[batch, places, width]`.

        Args:
            path: Layer that the added node is named after.
            x: Tensor to reshape.
            width: Size of its last axis.
        """
        return self.build.at(path).reshaped(x, self.batch, self.places, width)

    def _bias(self, path: str) -> Value:
        """Returns the bias of attention scores for each distance, key position - query position.

        Args:
            path: The layer: "enc.blk.N".

        Returns:
            `[heads, 2 * places - 1]`, for distances from 1 - places to places - 1.
        """
        build, relative = self.build, self.encoder.relative
        assert relative is not None
        path = path if relative.each else "enc.blk.0"
        if path not in self._biases:
            reach, one = relative.reach, build.numbers(1)
            biases = build.distance_biases(path, np.arange(-reach, reach + 1))
            ends = (build.dim(1 - self.places), build.dim(self.places))
            columns = build(path, Range(), *ends, one)
            columns = build(path, Max(), columns, build.numbers(-reach))
            columns = build(path, Min(), columns, build.numbers(reach))
            columns = build(path, Add(), columns, build.numbers(reach))
            self._biases[path] = build(path, Gather(axis=1), biases, columns)
        return self._biases[path]

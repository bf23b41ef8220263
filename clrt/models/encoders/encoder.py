"""Builds a BERT-like encoder: embeddings, attention layers and the pooler."""

from __future__ import annotations

import numpy as np

from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.models.encoders.config import HuggingFaceConfig
from clrt.models.encoders.families import RELATIVE_BUCKETS, RELATIVE_REACH
from clrt.models.encoders.layers import EncoderBuilder
from clrt.models.huggingface.relative_buckets import relative_buckets
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import Unsqueeze
from clrt.ops.norm.softmax import Softmax
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.table import Add, Equal, Mul, Not, Sub
from clrt.ops.reduce.cum_sum import CumSum

_WORDS = "embeddings.word_embeddings.weight"


class Encoder:
    """Builds the graph of one BERT-like encoder.

    Attributes:
        build: Builder of the nodes.
        config: Configuration of the encoder.
        inputs: Graph inputs, all int64 `[batch, sequence]`.
    """

    def __init__(self, build: EncoderBuilder, config: HuggingFaceConfig) -> None:
        self.build = build
        self.config = config
        prefix = config.family.prefix
        self._prefix = prefix if f"{prefix}{_WORDS}" in build.source else ""
        self._token_ids, self._mask = self._input("input_ids"), self._input("attention_mask")
        self.inputs = [self._token_ids, self._mask]
        self._types: Value | None = None
        if config.family.token_types == "input" and config.token_types > 0:
            self._types = self._input("token_type_ids")
            self.inputs.append(self._types)

    @property
    def word_embeddings(self) -> str:
        """Name of the word embedding table."""
        return self._prefix + _WORDS

    @property
    def has_pooler(self) -> bool:
        """Whether the checkpoint holds a pooler."""
        pooler = self.config.family.pooler
        return pooler is not None and f"{self._prefix}{pooler}.weight" in self.build.source

    def hidden_states(self) -> Value:
        """Adds embeddings and layers; returns the last hidden state `[batch, sequence, hidden]`."""
        hidden = self._embeddings()
        bias = self._attention_bias()
        for path in self.config.layer_paths():
            hidden = self._layer(hidden, bias, self._prefix + path)
        return hidden

    def pooled(self, hidden: Value) -> Value:
        """Adds the pooler, which reads the first token.

        Args:
            hidden: Last hidden state, `[batch, sequence, hidden]`.

        Returns:
            Output of the pooler, `[batch, hidden]`.
        """
        path = f"{self._prefix}{self.config.family.pooler}"
        first = self.build.first_token(hidden, path)
        size = self.config.hidden
        return self.build.activation(self.build.linear(first, path, size, size), "tanh", path)

    def _input(self, name: str) -> Value:
        return self.build.input(name, DType.INT64, (symbol("batch"), symbol("sequence")))

    def _embeddings(self) -> Value:
        """Adds the normalised sum of word, token type and position embeddings.

        Returns:
            `[batch, sequence, hidden]`; families with smaller embeddings project them to this size.
        """
        config, build = self.config, self.build
        size, path = config.embedding, f"{self._prefix}embeddings"
        words = build.weight(self.word_embeddings, config.vocabulary, size)
        total = build(path, Gather(), words, self._token_ids)
        for term in (self._token_types(path), self._positions(path)):
            total = build(path, Add(), total, term) if term is not None else total
        total = build.layer_norm(total, f"{path}.LayerNorm", size, config.epsilon)
        if not config.projected:
            return total
        return build.linear(total, f"{self._prefix}{config.family.projection}", size, config.hidden)

    def _token_types(self, path: str) -> Value | None:
        config, build = self.config, self.build
        if config.family.token_types == "none" or config.token_types == 0:
            return None
        name = f"{path}.token_type_embeddings.weight"
        table = build.weight(name, config.token_types, config.embedding)
        rows = build.numbers(0) if self._types is None else self._types
        return build(path, Gather(), table, rows)

    def _positions(self, path: str) -> Value:
        config, build = self.config, self.build
        name = f"{path}.position_embeddings.weight"
        table = build.weight(name, config.max_positions, config.embedding)
        if config.family.positions == "padding":
            return build(path, Gather(), table, self._padded_positions())
        return build.at(path).slice(table, 0, self._sequence_length(), axis=0)

    def _padded_positions(self) -> Value:
        """Returns positions as in RoBERTa, int64 `[batch, sequence]`.

        The first token that is not padding gets padding_index + 1; padding gets padding_index.
        """
        build, layer = self.build, "positions"
        padding = build.numbers(self.config.padding_index)
        is_padding = build(layer, Equal(), self._token_ids, padding)
        token = build(layer, Cast(DType.INT64), build(layer, Not(), is_padding))
        count = build(layer, CumSum(), token, build.numbers(1))
        return build(layer, Add(), build(layer, Mul(), count, token), padding)

    def _sequence_length(self) -> Value:
        return self.build.at("sequence").dim_of(self._token_ids, 1)

    def _attention_bias(self) -> Value:
        """Returns the bias of attention scores in all layers: the mask, plus any position bias.

        Returns:
            `[batch, 1, 1, sequence]`; with a position bias `[batch, heads, sequence, sequence]`.
        """
        build, layer = self.build, "attention_bias"
        mask = build(layer, Cast(DType.FLOAT32), self._mask)
        mask = build(layer, Unsqueeze(), mask, build.ints(1, 2))
        one = build.numbers(1, DType.FLOAT32)
        least = build.numbers(np.finfo(np.float32).min, DType.FLOAT32)
        mask = build(layer, Mul(), build(layer, Sub(), one, mask), least)
        if self.config.family.relative_bias is None:
            return mask
        return build(layer, Add(), self._relative_bias(), mask)

    def _relative_bias(self) -> Value:
        """Returns MPNet's bias of scores by relative position, `[1, heads, sequence, sequence]`."""
        config, build = self.config, self.build
        path = f"{self._prefix}{config.family.relative_bias}"
        most = config.max_positions - 1
        distances = np.arange(-most, most + 1)
        buckets = relative_buckets(distances, RELATIVE_BUCKETS, RELATIVE_REACH)
        places = self._relative_places(path, build.numbers(most))
        bucket = build(path, Gather(), build.numbers(buckets), places)
        table = build.weight(f"{path}.weight", RELATIVE_BUCKETS, config.heads)
        bias = build(path, Transpose((2, 0, 1)), build(path, Gather(), table, bucket))
        return build(path, Unsqueeze(), bias, build.ints(0))

    def _relative_places(self, path: str, offset: Value) -> Value:
        """Returns key position - query position + offset, `[queries, keys]`.

        Args:
            path: Layer that the added nodes are named after.
            offset: Number to add.
        """
        build = self.build
        places = build.at(path).count_up(self._sequence_length())
        columns = build(path, Unsqueeze(), places, build.ints(0))
        rows = build(path, Unsqueeze(), places, build.ints(1))
        return build(path, Add(), build(path, Sub(), columns, rows), offset)

    def _layer(self, hidden: Value, bias: Value, path: str) -> Value:
        """Adds an encoder layer: attention, feed-forward network, norms and residuals.

        Args:
            hidden: Input of the layer, `[batch, sequence, hidden]`.
            bias: Bias of attention scores (`_attention_bias`).
            path: Prefix of the layer's tensors.

        Returns:
            Output of the layer, in the shape of `hidden`.
        """
        config, family, build = self.config, self.config.family, self.build
        mixed = self._attention(hidden, bias, path)
        mixed = build.linear(mixed, path + family.attention_output, config.hidden, config.hidden)
        hidden = self._add_norm(mixed, hidden, path + family.attention_norm)
        wide = build.linear(hidden, path + family.feed_in, config.hidden, config.intermediate)
        wide = build.activation(wide, config.activation, path + family.feed_in)
        fed = build.linear(wide, path + family.feed_out, config.intermediate, config.hidden)
        return self._add_norm(fed, hidden, path + family.feed_norm)

    def _add_norm(self, x: Value, residual: Value, path: str) -> Value:
        total = self.build(path, Add(), x, residual)
        return self.build.layer_norm(total, path, self.config.hidden, self.config.epsilon)

    def _attention(self, hidden: Value, bias: Value, path: str) -> Value:
        """Adds the self-attention of a layer, without its output projection.

        Args:
            hidden: Input of the layer, `[batch, sequence, hidden]`.
            bias: Additive bias of attention scores (`_attention_bias`).
            path: Prefix of the layer's tensors.
        """
        config, family, build = self.config, self.config.family, self.build
        layer = f"{path}attention"
        query = self._split_heads(hidden, path + family.query, (0, 2, 1, 3))
        key = self._split_heads(hidden, path + family.key, (0, 2, 3, 1))
        value = self._split_heads(hidden, path + family.value, (0, 2, 1, 3))
        scale = build.numbers(config.head_size**-0.5, DType.FLOAT32)
        scores = build(layer, Mul(), build(layer, MatMul(), query, key), scale)
        scores = build(layer, Add(), scores, bias)
        mixed = build(layer, MatMul(), build(layer, Softmax(), scores), value)
        return build.at(layer).merge_heads(mixed, config.hidden)

    def _split_heads(self, hidden: Value, path: str, perm: tuple[int, ...]) -> Value:
        config, build = self.config, self.build
        projected = build.linear(hidden, path, config.hidden, config.hidden)
        return build.at(path).split_heads(projected, config.heads, config.head_size, perm)

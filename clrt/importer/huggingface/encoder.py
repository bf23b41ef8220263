"""Writes the encoder: embeddings, attention layers and the pooler."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from clrt.importer.huggingface.config import HuggingFaceConfig
from clrt.importer.huggingface.families import RELATIVE_BUCKETS, RELATIVE_REACH
from clrt.importer.huggingface.writer import GraphWriter

_WORDS = "embeddings.word_embeddings.weight"


class Encoder:
    """Writes one encoder's graph.

    Attributes:
        writer: Where nodes go.
        config: What to build.
    """

    def __init__(self, writer: GraphWriter, config: HuggingFaceConfig) -> None:
        self.writer = writer
        self.config = config
        prefix = config.family.prefix
        self._prefix = prefix if f"{prefix}{_WORDS}" in writer.checkpoint else ""

    @property
    def input_names(self) -> list[str]:
        """The graph's inputs, all int64 [batch, sequence]."""
        names = ["input_ids", "attention_mask"]
        return [*names, "token_type_ids"] if self._reads_token_types else names

    @property
    def word_embeddings(self) -> str:
        """The name of the word embedding table."""
        return self._prefix + _WORDS

    @property
    def has_pooler(self) -> bool:
        """Whether the checkpoint holds a pooler."""
        pooler = self.config.family.pooler
        return pooler is not None and f"{self._prefix}{pooler}.weight" in self.writer.checkpoint

    def hidden_states(self) -> str:
        """Writes the embeddings and all layers, and returns the last hidden state."""
        hidden = self._embeddings()
        bias = self._attention_bias()
        for path in self.config.layer_paths():
            hidden = self._layer(hidden, bias, self._prefix + path)
        return hidden

    def pooled(self, hidden: str) -> str:
        """Writes the pooler on the first token and returns its output."""
        path = f"{self._prefix}{self.config.family.pooler}"
        first = self.writer.first_token(hidden, path)
        size = self.config.hidden
        return self.writer.activation(self.writer.linear(first, path, size, size), "tanh", path)

    @property
    def _reads_token_types(self) -> bool:
        return self.config.family.token_types == "input" and self.config.token_types > 0

    def _embeddings(self) -> str:
        config, writer = self.config, self.writer
        size, path = config.embedding, f"{self._prefix}embeddings"
        words = writer.weight(self.word_embeddings, (config.vocabulary, size))
        total = writer.node("Gather", [words, "input_ids"], path)
        for term in (self._token_types(path), self._positions(path)):
            total = writer.node("Add", [total, term], path) if term else total
        total = writer.layer_norm(total, f"{path}.LayerNorm", size, config.epsilon)
        if not config.projected:
            return total
        return writer.linear(
            total, f"{self._prefix}{config.family.projection}", size, config.hidden
        )

    def _token_types(self, path: str) -> str | None:
        config, writer = self.config, self.writer
        if config.family.token_types == "none" or config.token_types == 0:
            return None
        name = f"{path}.token_type_embeddings.weight"
        table = writer.weight(name, (config.token_types, config.embedding))
        rows = "token_type_ids" if self._reads_token_types else writer.constant("zero", 0)
        return writer.node("Gather", [table, rows], path)

    def _positions(self, path: str) -> str:
        config, writer = self.config, self.writer
        name = f"{path}.position_embeddings.weight"
        table = writer.weight(name, (config.max_positions, config.embedding))
        if config.family.positions == "padding":
            return writer.node("Gather", [table, self._padded_positions()], path)
        bounds = [writer.constant("starts", [0]), self._sequence_length()]
        return writer.node("Slice", [table, *bounds, writer.constant("axes_0", [0])], path)

    def _padded_positions(self) -> str:
        """Numbers tokens from padding_index + 1 on; padding itself gets padding_index."""
        writer, scope = self.writer, "positions"
        padding = writer.constant("padding_index", self.config.padding_index)
        is_padding = writer.node("Equal", ["input_ids", padding], scope)
        token = writer.node("Not", [is_padding], scope)
        token = writer.node("Cast", [token], scope, to=TensorProto.INT64)
        count = writer.node("CumSum", [token, writer.constant("one", 1)], scope)
        count = writer.node("Mul", [count, token], scope)
        return writer.node("Add", [count, padding], scope)

    def _sequence_length(self) -> str:
        return self.writer.node("Shape", ["input_ids"], "sequence", start=1, end=2)

    def _attention_bias(self) -> str:
        """Writes what is added to all attention scores: the mask and any relative bias."""
        writer, scope = self.writer, "attention_bias"
        mask = writer.node("Cast", ["attention_mask"], scope, to=TensorProto.FLOAT)
        mask = writer.node("Unsqueeze", [mask, writer.constant("axes_1_2", [1, 2])], scope)
        one = writer.constant("one_float", 1.0, np.float32)
        least = writer.constant("least_float", np.finfo(np.float32).min, np.float32)
        mask = writer.node("Mul", [writer.node("Sub", [one, mask], scope), least], scope)
        if self.config.family.relative_bias is None:
            return mask
        return writer.node("Add", [self._relative_bias(), mask], scope)

    def _relative_bias(self) -> str:
        """Writes MPNet's bias by bucketed distance, [1, heads, sequence, sequence].

        The buckets of all distances are a constant: their logarithms would round differently on
        different devices, and move distances at the borders to another bucket.
        """
        config, writer = self.config, self.writer
        scope = f"{self._prefix}{config.family.relative_bias}"
        most = config.max_positions - 1
        buckets = writer.constant("buckets", relative_buckets(np.arange(-most, most + 1)))
        place = self._relative_places(scope, writer.constant("most_distance", most))
        bucket = writer.node("Gather", [buckets, place], scope)
        table = writer.weight(f"{scope}.weight", (RELATIVE_BUCKETS, config.heads))
        bias = writer.node("Gather", [table, bucket], scope)
        bias = writer.node("Transpose", [bias], scope, perm=[2, 0, 1])
        return writer.node("Unsqueeze", [bias, writer.constant("axes_0", [0])], scope)

    def _relative_places(self, scope: str, offset: str) -> str:
        """Writes key position - query position + offset, [sequence, sequence]."""
        writer = self.writer
        length = writer.node("Squeeze", [self._sequence_length()], scope)
        limits = [writer.constant("zero", 0), length, writer.constant("one", 1)]
        places = writer.node("Range", limits, scope)
        columns = writer.node("Unsqueeze", [places, writer.constant("axes_0", [0])], scope)
        rows = writer.node("Unsqueeze", [places, writer.constant("axes_1", [1])], scope)
        distance = writer.node("Sub", [columns, rows], scope)
        return writer.node("Add", [distance, offset], scope)

    def _layer(self, hidden: str, bias: str, path: str) -> str:
        config, family, writer = self.config, self.config.family, self.writer
        mixed = self._attention(hidden, bias, path)
        mixed = writer.linear(mixed, path + family.attention_output, config.hidden, config.hidden)
        hidden = self._add_norm(mixed, hidden, path + family.attention_norm)
        wide = writer.linear(hidden, path + family.feed_in, config.hidden, config.intermediate)
        wide = writer.activation(wide, config.activation, path + family.feed_in)
        fed = writer.linear(wide, path + family.feed_out, config.intermediate, config.hidden)
        return self._add_norm(fed, hidden, path + family.feed_norm)

    def _add_norm(self, x: str, residual: str, path: str) -> str:
        total = self.writer.node("Add", [x, residual], path)
        return self.writer.layer_norm(total, path, self.config.hidden, self.config.epsilon)

    def _attention(self, hidden: str, bias: str, path: str) -> str:
        config, family, writer = self.config, self.config.family, self.writer
        scope = f"{path}attention"
        query = self._split_heads(hidden, path + family.query, [0, 2, 1, 3])
        key = self._split_heads(hidden, path + family.key, [0, 2, 3, 1])
        value = self._split_heads(hidden, path + family.value, [0, 2, 1, 3])
        scores = writer.node("MatMul", [query, key], scope)
        scale = writer.constant("attention_scale", config.head_size**-0.5, np.float32)
        scores = writer.node("Mul", [scores, scale], scope)
        scores = writer.node("Add", [scores, bias], scope)
        shares = writer.node("Softmax", [scores], scope, axis=-1)
        mixed = writer.node("MatMul", [shares, value], scope)
        mixed = writer.node("Transpose", [mixed], scope, perm=[0, 2, 1, 3])
        merged = writer.constant("merged_shape", [0, 0, config.hidden])
        return writer.node("Reshape", [mixed, merged], scope)

    def _split_heads(self, hidden: str, path: str, perm: list[int]) -> str:
        config, writer = self.config, self.writer
        projected = writer.linear(hidden, path, config.hidden, config.hidden)
        split = writer.constant("split_shape", [0, 0, config.heads, config.head_size])
        return writer.node(
            "Transpose", [writer.node("Reshape", [projected, split], path)], path, perm=perm
        )


def relative_buckets(distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns MPNet's bucket of each distance (key position - query position).

    Half of the buckets serve keys after the query; in each half, half of the buckets hold one
    distance each and the others ranges that grow logarithmically up to `RELATIVE_REACH`.

    Args:
        distances: Whole numbers of either sign.

    Returns:
        Bucket numbers from 0 to `RELATIVE_BUCKETS` - 1.
    """
    half = RELATIVE_BUCKETS // 2
    exact = half // 2
    steps = np.abs(distances)
    ratio = np.log(np.maximum(steps, 1).astype(np.float32) / np.float32(exact))
    growth = ratio / np.float32(math.log(RELATIVE_REACH / exact)) * np.float32(half - exact)
    ranged = np.minimum(exact + growth.astype(np.int64), half - 1)
    return np.where(steps < exact, steps, ranged) + np.where(distances > 0, half, 0)

"""Builds the layers of decoders with the weights of a WeightSource."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import groupby
from typing import TypeAlias

import numpy as np

from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array, ConcatenatedRows
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.half_precision import in_one_dtype
from clrt.models.decoders.weight_source import QuantizedMatrix, WeightSource
from clrt.models.huggingface.relative_buckets import relative_buckets
from clrt.models.model_builder import ModelBuilder
from clrt.ops.matmul.quantized_gather import QuantizedGather
from clrt.ops.matmul.quantized_matmul import QuantizedMatMul
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.views import Reshape, Unsqueeze
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.ops.norm.rms_normalization import RMSNormalization
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.table import Add, Cos, Div, Mul, Sin, Tanh
from clrt.ops.pointwise.variadic import Max, Min
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class StackedQuantizedMatrix:
    """Quantised matrices of one block type, stacked: rows of the first, then rows of the next.

    Attributes:
        type: Name of the block type (`clrt.formats.gguf.block_types`).
        raw: uint8 `[rows, bytes of a row]`.
    """

    type: str
    raw: ConcatenatedRows


Matrix: TypeAlias = Array | ConcatenatedRows | QuantizedMatrix | StackedQuantizedMatrix


class DecoderBuilder(ModelBuilder[WeightSource]):
    """A graph builder for decoders: weights may be quantised or parts of a stored tensor.

    Attributes:
        decoder: Configuration of the decoder, or of its encoder.
    """

    def __init__(self, source: WeightSource, decoder: DecoderConfig) -> None:
        super().__init__(source)
        self.decoder = decoder
        self._types: dict[str, str] = {}

    def of(self, decoder: DecoderConfig) -> DecoderBuilder:
        """Returns a builder with another configuration that adds to the same graph.

        Args:
            decoder: Configuration of the decoder or of its encoder.
        """
        builder = copy(self)
        builder.decoder = decoder
        return builder

    def load_float32(self, name: str, *shape: int) -> Array:
        """Returns the elements of tensor `name` of the source as float32."""
        return self.source.load(name, shape).astype(np.float32, copy=False)

    def linear(self, x: Value, path: str, inputs: int, outputs: int) -> Value:
        """Returns x times a transposed matrix of the source, plus its bias if the source has one.

        Args:
            path: The tensors' name without ".weight" and ".bias".
            inputs: Columns of x and of the matrix.
            outputs: Rows of the matrix.
        """
        name = f"{path}.weight"
        y = self.loaded_product(x, name, lambda: self.source.matrix(name, outputs, inputs), path)
        bias = f"{path}.bias"
        if bias not in self.source:
            return y
        return self(
            path, Add(), y, self.named_constant(bias, lambda: self.load_float32(bias, outputs))
        )

    def loaded_product(self, x: Value, name: str, load: Callable[[], Matrix], layer: str) -> Value:
        """Returns x times the transpose of a matrix of the source, which may be quantised.

        Args:
            name: Name of the matrix in the graph.
            load: Returns the matrix, `[outputs, inputs]`; not called if the graph already has a
                constant of this name.
            layer: Prefix of the node's name.
        """
        matrix, type_ = self._matrix(name, load)
        if type_ is None:
            return self.product(x, matrix, layer)
        return self(layer, QuantizedMatMul(type_, *_sizes(type_, matrix)), x, matrix)

    def _matrix(self, name: str, load: Callable[[], Matrix]) -> tuple[Value, str | None]:
        """Returns a matrix as a constant, and its block type (None if it is not quantised).

        Args:
            name: Name of the matrix in the graph.
            load: Returns the matrix; not called if the graph already has a constant of this name.
        """
        if name not in self._weights:
            loaded = load()
            if isinstance(loaded, QuantizedMatrix | StackedQuantizedMatrix):
                self._types[name] = loaded.type
                loaded = loaded.raw
            self.named_constant(name, lambda: loaded)
        return self._weights[name], self._types.get(name)

    def joined_linear(self, x: Value, whole: str, parts: Mapping[str, int], inputs: int) -> Value:
        """Returns x times several transposed matrices plus biases, concatenated along the columns.

        Neighbouring matrices are multiplied by one node if both have the same block type, or both
        are not quantised.

        Args:
            x: `[rows, inputs]`.
            whole: Path under which the source may store all matrices as one.
            parts: Number of outputs of each matrix, by its path.
            inputs: Columns of x.
        """
        columns = sum(parts.values())
        if f"{whole}.weight" in self.source:
            return self.linear(x, whole, inputs, columns)
        loaded = {p: self.source.matrix(f"{p}.weight", n, inputs) for p, n in parts.items()}
        # In mixed quantisations, V often has another block type than Q and K.
        runs = [list(run) for _, run in groupby(parts, lambda path: _kind(loaded[path]))]
        products = []
        for run in runs:
            path = whole if len(runs) == 1 else "+".join((run[0], *map(_last, run[1:])))
            matrices = [loaded[p] for p in run]
            y = self.loaded_product(x, f"{path}.weight", partial(_stacked, matrices), whole)
            if any(f"{p}.bias" in self.source for p in run):
                bias = self.named_constant(
                    f"{path}.bias", partial(self._biases, {p: parts[p] for p in run})
                )
                y = self(whole, Add(), y, bias)
            products.append(y)
        return products[0] if len(products) == 1 else self(whole, Concat(1), *products)

    def _biases(self, parts: Mapping[str, int]) -> Array:
        """Returns the concatenated biases of several matrices; 0 for biases that the source lacks.

        Args:
            parts: Number of outputs of each matrix, by its path.
        """
        return np.concatenate(
            [
                self.load_float32(f"{p}.bias", n)
                if f"{p}.bias" in self.source
                else np.zeros(n, np.float32)
                for p, n in parts.items()
            ]
        )

    def linear_pair(
        self, x: Value, whole: str, first: str, second: str, columns: int
    ) -> list[Value]:
        """Returns x times two transposed matrices, each plus its bias if the source has one.

        Args:
            x: `[tokens, hidden]`.
            whole: Path under which the source may store both matrices as one.
            first: Path of the first matrix.
            second: Path of the second matrix.
            columns: Number of outputs of each matrix.
        """
        size = self.decoder.hidden
        if f"{whole}.weight" not in self.source:
            return [self.linear(x, path, size, columns) for path in (first, second)]
        both = self.source.matrix(f"{whole}.weight", 2 * columns, size)
        name = f"{whole}.bias"
        bias = self.load_float32(name, 2 * columns) if name in self.source else None
        products = []
        for path, part in ((first, slice(columns)), (second, slice(columns, None))):
            y = self.loaded_product(x, f"{path}.weight", partial(_part, both, part), path)
            products.append(y if bias is None else self(path, Add(), y, self.constant(bias[part])))
        return products

    def qkv_projection(self, x: Value, path: str) -> Value:
        """Returns Q, K and V of x, with biases, norms and limits, but not rotated.

        The norm of Q and K is left to the attention if `DecoderConfig.qk_norm` is "head".

        Args:
            x: Input of the layer's attention, `[tokens, hidden]`.
            path: The layer: "blk.N".

        Returns:
            Q, K and V side by side, `[tokens, (heads + 2 * kv_heads) * head_size]`.
        """
        decoder = self.decoder
        q, kv = decoder.heads * decoder.head_size, decoder.kv_heads * decoder.head_size
        parts = {f"{path}.attn_q": q, f"{path}.attn_k": kv, f"{path}.attn_v": kv}
        y = self.joined_linear(x, f"{path}.attn_qkv", parts, decoder.hidden)
        if decoder.qk_norm in ("row", "heads"):
            normalise = self.norm if decoder.qk_norm == "row" else self._heads_norm
            rows = [
                normalise(self.columns(y, first, end, path), f"{path}.{name}", end - first)
                for first, end, name in ((0, q, "attn_q_norm"), (q, q + kv, "attn_k_norm"))
            ]
            y = self(path, Concat(1), *rows, self.columns(y, q + kv, q + 2 * kv, path))
        return self.clamped(y, -decoder.clip, decoder.clip, path) if decoder.clip else y

    def distance_biases(self, path: str, distances: Array) -> Value:
        """Returns the bias of attention scores by relative position, `[heads, distances]`.

        Args:
            path: The layer whose table of biases is read.
            distances: Key position - query position, 1-D; positive numbers only for an encoder.
        """
        decoder, relative = self.decoder, self.decoder.relative
        assert relative is not None
        buckets = relative_buckets(
            distances, relative.buckets, relative.reach, both=bool(distances.max() > 0)
        )
        table = self.load_float32(f"{path}.attn_rel_b.weight", relative.buckets, decoder.heads)
        biases = np.ascontiguousarray(table[buckets].T)
        return self.named_constant(f"{path}.attn_rel_b", lambda: biases)

    def _heads_norm(self, x: Value, path: str, size: int) -> Value:
        """Applies LayerNorm to each head of x, `[tokens, size]`; each head has its own scale."""
        decoder, width = self.decoder, self.decoder.head_size
        op = LayerNormalization(epsilon=decoder.epsilon)
        heads = self(path, Reshape(), x, self.ints(-1, size // width, width))
        ones = self.numbers(np.ones(width), DType.FLOAT32)
        scales = self.named_constant(
            f"{path}.weight", lambda: self.load_float32(f"{path}.weight", size // width, width)
        )
        heads = self(path, Mul(), self(path, op, heads, ones), scales)
        return self(path, Reshape(), heads, self.ints(-1, size))

    def columns(self, x: Value, first: int, end: int, path: str) -> Value:
        """Returns columns `first` to `end` - 1 of x, by a node named after `path`."""
        return self.at(path).slice(x, first, end, axis=1)

    def rows(
        self, path: str, count: int, width: int, indices: Value, kind: str = "weight"
    ) -> Value:
        """Returns rows of a table of the source as float32 `[len(indices), width]`.

        Args:
            path: Name of the table without its last component.
            count: Rows of the table.
            width: Columns of the table.
            indices: Indices of the rows to return.
            kind: Last component of the table's name.
        """
        name = f"{path}.{kind}"
        table, type_ = self._matrix(name, lambda: self.source.matrix(name, count, width))
        if type_ is not None:
            return self(path, QuantizedGather(type_, width, count), indices, table)
        return self.at(path).cast(self(path, Gather(), table, indices), DType.FLOAT32)

    def norm_scale(self, name: str, size: int) -> Value:
        """Returns the scale of a norm as float32 `[size]`: the stored scale plus `norm_shift`."""
        shift = np.float32(self.decoder.norm_shift)
        return self.named_constant(name, lambda: self.load_float32(name, size) + shift)

    def norm(self, x: Value, path: str, size: int) -> Value:
        """Applies the norm at a path to x: RMS norm or LayerNorm, as the decoder is configured.

        Args:
            path: The norm's name without ".weight" and ".bias"; a missing scale is 1.
            size: Columns of x.
        """
        decoder, name = self.decoder, f"{path}.weight"
        scale = (
            self.norm_scale(name, size)
            if name in self.source
            else self.constant(np.ones(size, np.float32))
        )
        if decoder.norm == "rms":
            return self(path, RMSNormalization(epsilon=decoder.epsilon), x, scale)
        bias = f"{path}.bias"
        shift = (
            self.named_constant(bias, lambda: self.load_float32(bias, size))
            if bias in self.source
            else None
        )
        return self(path, LayerNormalization(epsilon=decoder.epsilon), x, scale, shift)

    def rotary_tables(self, positions: Value, frequencies: Value, factor: float) -> list[Value]:
        """Returns cosines and sines of rotary embeddings, each `[rows, rotary_dim / 2]`.

        Args:
            positions: Position of each row, integers `[rows]`.
            frequencies: Rotary frequencies, float32 `[rotary_dim / 2]` for all rows, or of each row
                `[rows, rotary_dim / 2]`.
            factor: Multiplier of cosines and sines.
        """
        layer = "rotary"
        column = self(layer, Cast(DType.FLOAT32), positions)
        column = self(layer, Unsqueeze(), column, self.ints(1))
        angles = self(layer, Mul(), column, frequencies)
        tables = [self(layer, op, angles) for op in (Cos(), Sin())]
        return [self.scaled(table, factor, layer) for table in tables]

    def scaled(self, x: Value, factor: float, layer: str) -> Value:
        """Returns x times `factor`; x itself if the factor is 1."""
        return x if factor == 1 else self(layer, Mul(), x, self.numbers(factor, DType.FLOAT32))

    def clamped(self, x: Value, least: float | None, most: float, layer: str) -> Value:
        """Returns x limited to [least, most]; no lower limit if `least` is None."""
        x = self(layer, Min(), x, self.numbers(most, DType.FLOAT32))
        return x if least is None else self(layer, Max(), x, self.numbers(least, DType.FLOAT32))

    def soft_capped(self, x: Value, limit: float, layer: str) -> Value:
        """Returns limit * tanh(x / limit); x itself if `limit` is 0."""
        if not limit:
            return x
        number = self.numbers(limit, DType.FLOAT32)
        return self(layer, Mul(), self(layer, Tanh(), self(layer, Div(), x, number)), number)


def _stacked(parts: Sequence[Array | QuantizedMatrix]) -> Matrix:
    """Concatenates matrices vertically: rows of the first, then rows of the next.

    Args:
        parts: Matrices of equal width; all of one block type, or all unquantised.

    Returns:
        The concatenation, which refers to the parts; the matrix itself if there is only one.
    """
    if len(parts) == 1:
        return parts[0]
    quantised = [p for p in parts if isinstance(p, QuantizedMatrix)]
    if quantised:
        raw = ConcatenatedRows(tuple(p.raw for p in quantised), np.dtype(np.uint8))
        return StackedQuantizedMatrix(quantised[0].type, raw)
    arrays = in_one_dtype([p for p in parts if not isinstance(p, QuantizedMatrix)])
    return ConcatenatedRows(tuple(arrays), arrays[0].dtype)


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _kind(matrix: Array | QuantizedMatrix) -> str:
    """Returns the block type of a matrix; "" if it is not quantised."""
    return matrix.type if isinstance(matrix, QuantizedMatrix) else ""


def _part(matrix: Array | QuantizedMatrix, rows: slice) -> Array | QuantizedMatrix:
    """Returns a slice of rows of a matrix; rows of a quantised matrix stay quantised."""
    if isinstance(matrix, QuantizedMatrix):
        return QuantizedMatrix(matrix.type, matrix.raw[rows])
    return matrix[rows]


def _sizes(type_: str, matrix: Value) -> tuple[int, int]:
    """Returns (columns, rows) of a quantised matrix in elements.

    Args:
        type_: Name of the block type.
        matrix: Constant, uint8 `[rows, bytes of a row]`.
    """
    block, (rows, nbytes) = BLOCK_TYPES_BY_NAME[type_], matrix.dims
    return nbytes // block.nbytes * block.elements, rows

"""Makes the layers that decoders are made of, with the weights of a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeAlias

import numpy as np

from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME
from clrt.ir.builder import Builder
from clrt.ir.dtypes import HALVES, DType
from clrt.ir.graph import Value
from clrt.ir.op import Array, ConcatenatedRows, TensorType
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.half_precision import in_one_dtype
from clrt.models.decoders.weight_source import QuantizedMatrix, WeightSource
from clrt.models.huggingface.relative_buckets import relative_buckets
from clrt.ops.base import Op
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.quantized_gather import QuantizedGather
from clrt.ops.matmul.quantized_matmul import QuantizedMatMul
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.slice import Slice
from clrt.ops.movement.views import Reshape
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.ops.norm.rms_normalization import RMSNormalization
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.table import Add, Div, Mul, Tanh
from clrt.ops.pointwise.variadic import Max, Min


@dataclass(frozen=True)
class StackedQuantizedMatrix:
    """Matrices of quantised rows one below the other, as `QuantizedMatrix`."""

    type: str
    raw: ConcatenatedRows


Matrix: TypeAlias = Array | ConcatenatedRows | QuantizedMatrix | StackedQuantizedMatrix


class DecoderBuilder(Builder):
    """A builder whose nodes are named after the layer that they belong to.

    Attributes:
        source: Where weights come from.
        decoder: What is built.
    """

    def __init__(self, source: WeightSource, decoder: DecoderConfig) -> None:
        super().__init__()
        self.source, self.decoder = source, decoder
        self._weights: dict[str, Value] = {}
        self._types: dict[str, str] = {}

    def of(self, decoder: DecoderConfig) -> DecoderBuilder:
        """A builder of another part of the same graph, with the same weights."""
        made = copy(self)
        made.decoder = decoder
        return made

    def __call__(self, layer: str, op: Op, *inputs: Value | None) -> Value:
        """The output of a new node `/<layer>/<op>`."""
        return self.all(layer, op, *inputs)[0]

    def all(self, layer: str, op: Op, *inputs: Value | None) -> list[Value]:
        """All outputs of such a node."""
        return Builder(self.names, f"/{layer}", nodes=self.nodes).add_all(op, *inputs)

    def weight(self, name: str, *shape: int) -> Value:
        """A tensor as a constant of its name.

        Raises:
            ModelError: As `WeightSource.load`.
        """
        return self._kept(name, lambda: self.source.load(name, shape))

    def _kept(self, name: str, make: Callable[[], Array | ConcatenatedRows]) -> Value:
        if name not in self._weights:
            self.names.reserve(name)
            self._weights[name] = Value(name, TensorType.of(make()))
        return self._weights[name]

    def wide(self, name: str, *shape: int) -> Array:
        """A small tensor as float32."""
        return self.source.load(name, shape).astype(np.float32, copy=False)

    def linear(self, x: Value, path: str, inputs: int, outputs: int) -> Value:
        """x times the matrix at a path, with its bias where it has one."""
        name = f"{path}.weight"
        y = self.product(x, name, lambda: self.source.matrix(name, outputs, inputs), path)
        bias = f"{path}.bias"
        if bias not in self.source:
            return y
        return self(path, Add(), y, self._kept(bias, lambda: self.wide(bias, outputs)))

    def product(self, x: Value, name: str, load: Callable[[], Matrix], layer: str) -> Value:
        """x times the transpose of a matrix of that name, to whose 16 bits x may be rounded."""
        matrix, type_ = self._matrix(name, load)
        if type_ is None:
            a_dtype = matrix.dtype if matrix.dtype in HALVES else None
            return self(layer, FusedMatMul(trans_b=1, a_dtype=a_dtype), x, matrix)
        return self(layer, QuantizedMatMul(type_, *_sizes(type_, matrix)), x, matrix)

    def _matrix(self, name: str, load: Callable[[], Matrix]) -> tuple[Value, str | None]:
        """A matrix as a constant, and the type of its blocks, if it has such."""
        if name not in self._weights:
            loaded = load()
            if isinstance(loaded, QuantizedMatrix | StackedQuantizedMatrix):
                self._types[name] = loaded.type
                loaded = loaded.raw
            self._kept(name, lambda: loaded)
        return self._weights[name], self._types.get(name)

    def joined(self, x: Value, whole: str, parts: Mapping[str, int], inputs: int) -> Value:
        """x times several matrices side by side: one product, at the path `whole`.

        Args:
            parts: The columns of each, by its path; as `whole` they may lie as one already.
        """
        columns = sum(parts.values())
        if f"{whole}.weight" in self.source:
            return self.linear(x, whole, inputs, columns)
        loaded = {p: self.source.matrix(f"{p}.weight", n, inputs) for p, n in parts.items()}
        # Of mixed quantisations, V often has another type than Q and K.
        runs = [list(run) for _, run in groupby(parts, lambda path: _kind(loaded[path]))]
        products = []
        for run in runs:
            path = whole if len(runs) == 1 else "+".join((run[0], *map(_last, run[1:])))
            matrices = [loaded[p] for p in run]
            y = self.product(x, f"{path}.weight", partial(_stacked, matrices), whole)
            if any(f"{p}.bias" in self.source for p in run):
                bias = self._kept(f"{path}.bias", partial(self._biases, {p: parts[p] for p in run}))
                y = self(whole, Add(), y, bias)
            products.append(y)
        return products[0] if len(products) == 1 else self(whole, Concat(1), *products)

    def _biases(self, parts: Mapping[str, int]) -> Array:
        return np.concatenate(
            [
                self.wide(f"{p}.bias", n) if f"{p}.bias" in self.source else np.zeros(n, np.float32)
                for p, n in parts.items()
            ]
        )

    def halves(self, x: Value, whole: str, first: str, second: str, columns: int) -> list[Value]:
        """Two products of x, whose matrices may lie as one at the path `whole`."""
        size = self.decoder.hidden
        if f"{whole}.weight" not in self.source:
            return [self.linear(x, path, size, columns) for path in (first, second)]
        both = self.source.matrix(f"{whole}.weight", 2 * columns, size)
        name = f"{whole}.bias"
        bias = self.wide(name, 2 * columns) if name in self.source else None
        products = []
        for path, part in ((first, slice(columns)), (second, slice(columns, None))):
            y = self.product(x, f"{path}.weight", partial(_part, both, part), path)
            products.append(y if bias is None else self(path, Add(), y, self.constant(bias[part])))
        return products

    def projected(self, x: Value, path: str) -> Value:
        """The heads of Q, K and V side by side, `[tokens, (heads + 2 kv_heads) * head_size]`."""
        decoder = self.decoder
        q, kv = decoder.heads * decoder.head_size, decoder.kv_heads * decoder.head_size
        parts = {f"{path}.attn_q": q, f"{path}.attn_k": kv, f"{path}.attn_v": kv}
        y = self.joined(x, f"{path}.attn_qkv", parts, decoder.hidden)
        if decoder.qk_norm in ("row", "heads"):
            normalise = self.norm if decoder.qk_norm == "row" else self._heads_norm
            rows = [
                normalise(self.columns(y, first, end, path), f"{path}.{name}", end - first)
                for first, end, name in ((0, q, "attn_q_norm"), (q, q + kv, "attn_k_norm"))
            ]
            y = self(path, Concat(1), *rows, self.columns(y, q + kv, q + 2 * kv, path))
        return self.clipped(y, -decoder.clip, decoder.clip, path) if decoder.clip else y

    def distance_biases(self, path: str, distances: Array) -> Value:
        """What scores of keys at some distances get, `[heads, distances]`.

        Args:
            path: Of a layer's attention.
            distances: Places of keys less those of their queries; only of an encoder above 0.
        """
        decoder, relative = self.decoder, self.decoder.relative
        assert relative is not None
        buckets = relative_buckets(
            distances, relative.buckets, relative.reach, both=bool(distances.max() > 0)
        )
        table = self.wide(f"{path}.attn_rel_b.weight", relative.buckets, decoder.heads)
        biases = np.ascontiguousarray(table[buckets].T)
        return self._kept(f"{path}.attn_rel_b", lambda: biases)

    def _heads_norm(self, x: Value, path: str, size: int) -> Value:
        """Each head less its mean, divided by its deviation, times a scale of its own."""
        decoder, width = self.decoder, self.decoder.head_size
        op = LayerNormalization(epsilon=decoder.epsilon)
        heads = self(path, Reshape(), x, self.ints(-1, size // width, width))
        ones = self.numbers(np.ones(width), DType.FLOAT32)
        scales = self._kept(
            f"{path}.weight", lambda: self.wide(f"{path}.weight", size // width, width)
        )
        heads = self(path, Mul(), self(path, op, heads, ones), scales)
        return self(path, Reshape(), heads, self.ints(-1, size))

    def columns(self, x: Value, first: int, end: int, path: str) -> Value:
        """x[:, first:end]."""
        return self(path, Slice(), x, self.ints(first), self.ints(end), self.ints(1))

    def rows(
        self, path: str, count: int, width: int, indices: Value, kind: str = "weight"
    ) -> Value:
        """Rows of a table as float32."""
        name = f"{path}.{kind}"
        table, type_ = self._matrix(name, lambda: self.source.matrix(name, count, width))
        if type_ is not None:
            return self(path, QuantizedGather(type_, width, count), indices, table)
        found = self(path, Gather(), table, indices)
        return found if found.dtype is DType.FLOAT32 else self(path, Cast(DType.FLOAT32), found)

    def norm_scale(self, name: str, size: int) -> Value:
        """The scale of a norm, with what its family adds to it."""
        shift = np.float32(self.decoder.norm_shift)
        return self._kept(name, lambda: self.wide(name, size) + shift)

    def norm(self, x: Value, path: str, size: int) -> Value:
        """The normalisation at a path; its scale is 1 where the source has none."""
        decoder, name = self.decoder, f"{path}.weight"
        scale = (
            self.norm_scale(name, size)
            if name in self.source
            else self.constant(np.ones(size, np.float32))
        )
        if decoder.norm == "rms":
            return self(path, RMSNormalization(epsilon=decoder.epsilon), x, scale)
        bias = f"{path}.bias"
        shift = self._kept(bias, lambda: self.wide(bias, size)) if bias in self.source else None
        return self(path, LayerNormalization(epsilon=decoder.epsilon), x, scale, shift)

    def scaled(self, x: Value, factor: float, layer: str) -> Value:
        """x times a number."""
        return x if factor == 1 else self(layer, Mul(), x, self.numbers(factor, DType.FLOAT32))

    def clipped(self, x: Value, least: float | None, most: float, layer: str) -> Value:
        """x, but no less than one number, where that is there, and no more than the other."""
        x = self(layer, Min(), x, self.numbers(most, DType.FLOAT32))
        return x if least is None else self(layer, Max(), x, self.numbers(least, DType.FLOAT32))

    def capped(self, x: Value, limit: float, layer: str) -> Value:
        """limit * tanh(x / limit); x where there is no limit."""
        if not limit:
            return x
        number = self.numbers(limit, DType.FLOAT32)
        return self(layer, Mul(), self(layer, Tanh(), self(layer, Div(), x, number)), number)


def _stacked(parts: Sequence[Array | QuantizedMatrix]) -> Matrix:
    """Matrices one below the other, all quantised to one type or none."""
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
    """What matrices of one product have alike: the type of blocks, or that there are none."""
    return matrix.type if isinstance(matrix, QuantizedMatrix) else ""


def _part(matrix: Array | QuantizedMatrix, rows: slice) -> Array | QuantizedMatrix:
    """Some rows of a matrix."""
    if isinstance(matrix, QuantizedMatrix):
        return QuantizedMatrix(matrix.type, matrix.raw[rows])
    return matrix[rows]


def _sizes(type_: str, matrix: Value) -> tuple[int, int]:
    """K and N of quantised rows."""
    found, (rows, nbytes) = BLOCK_TYPES_BY_NAME[type_], matrix.dims
    return nbytes // found.nbytes * found.elements, rows

"""String ops, which run on the host."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from clrt.errors import ModelError, ShapeError, UnsupportedError, install_command
from clrt.ir.dims import Shape, provably_different
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import broadcast_shapes, need
from clrt.ops.movement.common import fresh_dim
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.host_limits import check_texts, text_array


def text_input(inputs: Types, index: int, op: Op) -> TensorType:
    """Returns the type of input `index`, a string tensor.

    Raises:
        ModelError: The input is omitted.
        ShapeError: The input is not a string tensor.
    """
    type_ = need(inputs, index, op)
    if type_.dtype is not DType.STRING:
        raise ShapeError(f"{op.name}: input {index} is {type_}; expected strings.")
    return type_


def filled_rows(rows: Sequence[Sequence[str]], filler: str) -> Array:
    """Returns lists of strings as rows of an array, padded with `filler` to the longest list.

    Raises:
        OutOfMemoryError: The array would exceed CLRT_HOST_LIMIT.
    """
    length = max(map(len, rows), default=0)
    longest = max((len(text) for row in rows for text in row), default=0)
    check_texts(len(rows) * length, max(longest, len(filler)))
    filled = np.full((len(rows), length), filler, f"U{max(longest, len(filler), 1)}")
    for target, row in zip(filled, rows, strict=True):
        target[: len(row)] = row
    return filled


_MAX_PATTERN = 1 << 16  # characters


@lru_cache(maxsize=64)
def compile_pattern(pattern: str, op: str, longest: bool = False) -> Any:
    """Compiles an RE2 pattern, which matches UTF-8 bytes in time linear in their number.

    Args:
        pattern: Regular expression in RE2's syntax.
        op: Op name, for messages.
        longest: Whether the longest match wins instead of the first alternative.

    Raises:
        UnsupportedError: RE2 is not installed, or the pattern is invalid or too long.
    """
    if importlib.util.find_spec("re2") is None:
        raise UnsupportedError(f"{op} needs RE2: {install_command('re2')}.")
    import re2

    if len(pattern) > _MAX_PATTERN:
        raise UnsupportedError(f"{op}: its pattern has {len(pattern)} characters")
    options = re2.Options()
    options.log_errors, options.longest_match, options.never_capture = False, longest, True
    try:
        return re2.compile(pattern.encode(errors="replace"), options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        raise UnsupportedError(f"{op}: pattern '{pattern}': {reason}") from error


# StringConcat may use 1/16 of the host's limit: NumPy concatenates only 100 MB/s, and a few nodes
# can request any length.
_CONCAT_SHARE = 16


@register
class StringConcat(Op):
    """Concatenates strings elementwise, with broadcasting. Source: ONNX StringConcat, opset 20."""

    accuracy = Accuracy.EXACT

    def infer(self, inputs: Types) -> list[TensorType]:
        types = [text_input(inputs, i, self) for i in (0, 1)]
        return [TensorType(DType.STRING, broadcast_shapes([t.shape for t in types], self))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = inputs
        assert a is not None and b is not None
        count = math.prod(np.broadcast_shapes(a.shape, b.shape))
        check_texts(count, (a.itemsize + b.itemsize) // 4, _CONCAT_SHARE)
        return (np.asarray(np.char.add(a, b)),)


@register
@dataclass(frozen=True)
class StringSplit(Op):
    """Splits each string at a delimiter; returns the pieces, padded with "", and their number.

    Attributes:
        delimiter: Delimiter; None or "" to split at whitespace.
        maxsplit: Maximum number of splits per string; None for no limit.

    Source: ONNX StringSplit, opset 20.
    """

    delimiter: str | None = None
    maxsplit: int | None = None

    accuracy = Accuracy.EXACT

    def infer(self, inputs: Types) -> list[TensorType]:
        x = text_input(inputs, 0, self)
        shape: Shape | None = None if x.shape is None else (*x.shape, fresh_dim())
        return [TensorType(DType.STRING, shape), TensorType(DType.INT64, x.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        limit = -1 if self.maxsplit is None else self.maxsplit
        parts = [str(text).split(self.delimiter or None, limit) for text in x.flat]
        counts = np.array([len(p) for p in parts], np.int64).reshape(x.shape)
        filled = filled_rows(parts, "")
        return filled.reshape(*x.shape, filled.shape[1]), counts


@register
@dataclass(frozen=True)
class RegexFullMatch(Op):
    """Returns whether each whole string matches an RE2 pattern.

    Runs on the host, with RE2 (the extra `regex`). Source: ONNX RegexFullMatch, opset 20.
    """

    pattern: str = ""

    accuracy = Accuracy.EXACT

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        pattern = node.attrs.get("pattern", "")
        compile_pattern(pattern, cls.name)
        return cls(pattern)

    def infer(self, inputs: Types) -> list[TensorType]:
        return [TensorType(DType.BOOL, text_input(inputs, 0, self).shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        pattern = compile_pattern(self.pattern, self.name)
        matches = [pattern.fullmatch(str(text).encode()) is not None for text in x.flat]
        return (np.array(matches, bool).reshape(x.shape),)


def _lower(text: str) -> str:
    return "".join(c.lower()[0] for c in text)


def _upper(text: str) -> str:
    return "".join(c.upper() if len(c.upper()) == 1 else c for c in text)


@register
@dataclass(frozen=True)
class StringNormalizer(Op):
    """Removes stop words from a list of strings, and changes the case of the others.

    Input: strings `[count]` or `[1, count]`. If no string remains, the output is one empty string.
    Case conversion follows Unicode, character by character.

    Attributes:
        case_change_action: Case of the output: unchanged ("NONE"), lower or upper.
        is_case_sensitive: Whether stop words must have the same case as the string.
        stopwords: Stop words.
        locale: Ignored.

    Source: ONNX StringNormalizer, opset 10.
    """

    case_change_action: Literal["NONE", "LOWER", "UPPER"] = "NONE"
    is_case_sensitive: bool = False
    stopwords: tuple[str, ...] = ()
    locale: str = ""

    accuracy = Accuracy.EXACT

    def infer(self, inputs: Types) -> list[TensorType]:
        x = text_input(inputs, 0, self)
        if x.shape is None:
            return [TensorType(DType.STRING, None)]
        if len(x.shape) not in (1, 2) or (len(x.shape) == 2 and provably_different(x.shape[0], 1)):
            raise ShapeError(f"StringNormalizer: its input is {x}; expected [C] or [1,C].")
        return [TensorType(DType.STRING, (*x.shape[:-1], fresh_dim()))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        change = {"LOWER": _lower, "UPPER": _upper}.get(self.case_change_action, str)
        fold = str if self.is_case_sensitive else _lower
        stops = {fold(word) for word in self.stopwords}
        texts = [str(text) for text in x.flat]
        kept = [change(text) for text in texts if fold(text) not in stops] or [""] * min(x.size, 1)
        return (text_array(kept, (*x.shape[:-1], len(kept))),)


@register
@dataclass(frozen=True)
class TfIdfVectorizer(Op):
    """Counts how often each n-gram of a pool occurs in each row of the input, weighted.

    Input: items `[count]` or `[rows, count]`, integers or strings.

    Attributes:
        mode: "TF" for counts, "IDF" for weights of n-grams that occur, "TFIDF" for counts times
            weights.
        min_gram_length: Minimum items of an n-gram.
        max_gram_length: Maximum items of an n-gram.
        max_skip_count: Maximum items skipped between consecutive items of an n-gram; all gaps are
            equal.
        ngram_counts: Start of the n-grams of each length in the pool, from length 1 on.
        ngram_indexes: Output column of each n-gram of the pool.
        pool_int64s: Items of all n-grams in a row; () if they are strings.
        pool_strings: Items of all n-grams in a row; () if they are integers.
        weights: Weight of each n-gram of the pool; () for 1.

    Source: ONNX TfIdfVectorizer, opset 9.
    """

    mode: Literal["TF", "IDF", "TFIDF"] = "TF"
    min_gram_length: int = 1
    max_gram_length: int = 1
    max_skip_count: int = 0
    ngram_counts: tuple[int, ...] = (0,)
    ngram_indexes: tuple[int, ...] = (0,)
    pool_int64s: tuple[int, ...] = ()
    pool_strings: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()

    accuracy = Accuracy.ELEMENTWISE
    host_traits = HostTraits(has_slow_reference=True)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(DType.FLOAT32, None)]
        if len(x.shape) not in (1, 2):
            raise ShapeError(f"TfIdfVectorizer: its input is {x}; expected [C] or [N,C].")
        starts = (0, *self.ngram_counts, len(self.pool_int64s or self.pool_strings))
        if sorted(starts) != list(starts) or min(self.ngram_indexes) < 0:
            raise ModelError("TfIdfVectorizer: its ngram_counts or ngram_indexes are not valid.")
        return [TensorType(DType.FLOAT32, (*x.shape[:-1], max(self.ngram_indexes) + 1))]

    def _pool(self) -> dict[tuple[object, ...], int]:
        """Returns the index in an output row of each n-gram of the pool."""
        items: Sequence[object] = self.pool_int64s or self.pool_strings
        ends = [*self.ngram_counts[1:], len(items)]
        grams = [
            tuple(items[at : at + n])
            for n, (start, end) in enumerate(zip(self.ngram_counts, ends, strict=True), start=1)
            for at in range(start, end, n)
        ]
        return dict(zip(grams, self.ngram_indexes, strict=False))

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        pool = self._pool()
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        lengths = set(map(len, pool))
        counts = np.zeros((len(rows), max(self.ngram_indexes) + 1), np.float32)
        for row, items in zip(counts, rows.tolist(), strict=True):
            # N-grams longer than the row, and steps that leave it, cannot match.
            for n in range(max(self.min_gram_length, 1), min(self.max_gram_length, len(items)) + 1):
                if n not in lengths:
                    continue
                furthest = (len(items) - 1) // (n - 1) if n > 1 else 1
                for step in range(1, min(self.max_skip_count + 1, furthest) + 1):
                    for start in range(len(items) - (n - 1) * step):
                        index = pool.get(tuple(items[start : start + (n - 1) * step + 1 : step]))
                        if index is not None:
                            row[index] += 1
        weights = np.ones(counts.shape[1], np.float32)
        for index, weight in zip(self.ngram_indexes, self.weights, strict=False):
            weights[index] = weight
        if self.mode == "IDF":
            counts = np.minimum(counts, 1)
        result = counts if self.mode == "TF" else counts * weights
        return (result.reshape(*x.shape[:-1], len(weights)),)

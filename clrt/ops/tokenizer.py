"""Tokenizer: parts of texts, by regular expressions on the host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import ModelError, ShapeError, UnsupportedError
from clrt.ir.dims import Shape
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, OnnxNode, Op, Sample, Types, need, register
from clrt.ops.movement import fresh_dim

_START, _END = "\x02", "\x03"


def _compiled(pattern: str) -> re.Pattern[str]:
    # Classes of RE2 such as \w hold ASCII only.
    return re.compile(pattern, re.ASCII)


def _longest(pattern: re.Pattern[str], text: str, start: int) -> tuple[int, int] | None:
    """Where the first match from a place on lies, the longest of those that start there."""
    found = pattern.search(text, start)
    if found is None:
        return None
    longer = range(len(text), found.end(), -1)
    end = next((e for e in longer if pattern.fullmatch(text, found.start(), e)), found.end())
    return found.start(), end


@register
@dataclass(frozen=True)
class Tokenizer(Op):
    """The tokens of each text of `[C]` or `[N, C]` along a new axis, filled up behind them.

    They are what each of `separators` in turn leaves of them, or what matches `tokenexp`, in the
    syntax that RE2 and Python share; of those with fewer than `mincharnum` characters none is left.
    One separator "" and the expression "." give characters. With `mark` each text starts with
    U+0002 and ends with U+0003 where any has tokens. Source: com.microsoft Tokenizer 1.
    """

    mark: int = 0
    mincharnum: int = 1
    pad_value: str = ""
    separators: tuple[str, ...] | None = None
    tokenexp: str | None = None

    domain = "com.microsoft"
    accuracy = Accuracy.EXACT

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        op = super().from_onnx(node)
        assert isinstance(op, cls)
        if not op.separators and not op.tokenexp:
            raise ModelError("Tokenizer: it has neither separators nor a tokenexp.")
        if op.mincharnum < 1:
            raise ModelError(f"Tokenizer: its mincharnum is {op.mincharnum}; expected 1 or more.")
        for pattern in (*(op.separators or ()), op.tokenexp or ""):
            try:
                _compiled(pattern)
            except re.error as error:
                raise UnsupportedError(f"Tokenizer: pattern '{pattern}': {error}") from error
        return op

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.dtype is not DType.STRING or (x.shape is not None and len(x.shape) not in (1, 2)):
            raise ShapeError(f"Tokenizer: its input is {x}; expected strings [C] or [N,C].")
        shape: Shape | None = None if x.shape is None else (*x.shape, fresh_dim())
        return [TensorType(DType.STRING, shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        rows = [self._tokens(str(text)) for text in x.flat]
        width = max(map(len, rows), default=0)
        if self.mark and width:
            rows, width = [[_START, *row, _END] for row in rows], width + 2
        filled = [row + [self.pad_value] * (width - len(row)) for row in rows]
        return (np.array(filled, "U").reshape(*x.shape, width),)

    def _tokens(self, text: str) -> list[str]:
        if not self.separators:
            assert self.tokenexp is not None
            by_character = self.tokenexp == "."
            return list(text if by_character else self._matches(_compiled(self.tokenexp), text))
        if self.separators == ("",):
            return list(text)
        parts = [text]
        for separator in self.separators:
            pattern = _compiled(separator)
            parts = [token for part in parts for token in self._between(pattern, part)]
        return parts

    def _between(self, pattern: re.Pattern[str], text: str) -> Iterator[str]:
        """What lies between matches; an empty match takes a character with it."""
        start = 0
        while start <= len(text) and (found := _longest(pattern, text, start)):
            if found[0] - start >= self.mincharnum:
                yield text[start : found[0]]
            start = max(found[1], found[0] + 1)
        if len(text) - start >= self.mincharnum:
            yield text[start:]

    def _matches(self, pattern: re.Pattern[str], text: str) -> Iterator[str]:
        """What matches; one that is too short is looked for again from its second character on."""
        start = 0
        while start <= len(text) and (found := _longest(pattern, text, start)):
            enough = found[1] - found[0] >= self.mincharnum
            if enough:
                yield text[slice(*found)]
            start = found[1] if enough else found[0] + 1

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.array([["Hello, World  x", "a"], ["", "日本 b,c"]])
        yield Sample(cls(0, 1, "#", (" ",)), (x,))
        yield Sample(cls(1, 2, "#", (" ", ",")), (x[0],))
        yield Sample(cls(1, 1, "", ("",)), (x,))
        yield Sample(cls(0, 1, "", None, "."), (x,))
        yield Sample(cls(0, 2, "", None, "[a-z]*"), (x,))
        yield Sample(cls(1, 1, "", None, "[0-9]"), (x,))
        yield Sample(cls(0, 1, "#", (" ",)), (x[:0],))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        yield Sample(cls(0, 1, "", (" ",)), (np.array([1]),)), ShapeError
        yield Sample(cls(0, 1, "", (" ",)), (np.array([[["a"]]]),)), ShapeError

"""Tokenizer: splits strings by regular expressions, on the host."""

from __future__ import annotations

import math
from collections.abc import Iterator

from clrt.errors import ModelError, ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.movement.common import fresh_dim
from clrt.ops.registry import register
from clrt.ops.text.strings import compile_pattern, filled_rows, text_input
from clrt.util.fast_dataclass import dataclass


def _next_character(data: bytes, at: int) -> int:
    """Returns the index in UTF-8 bytes of the character after the one that starts at `at`."""
    at += 1
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at


@register
@dataclass(frozen=True)
class Tokenizer(Op):
    """Splits each string into tokens along a new last axis.

    Input: strings `[count]` or `[rows, count]`.

    Attributes:
        mark: Whether the characters 2 and 3 are added as first and last token of each string,
            unless no string has tokens.
        mincharnum: Minimum characters of a token; shorter ones are dropped.
        pad_value: String that follows the tokens of shorter rows.
        separators: Patterns between tokens; the separator "" splits into characters.
        tokenexp: Pattern of a token; "" if `separators` are given.

    Source: ONNX Runtime com.microsoft Tokenizer, opset 1.
    """

    mark: bool = False
    mincharnum: int = 1
    pad_value: str = ""
    separators: tuple[str, ...] = ()
    tokenexp: str = ""

    domain = "com.microsoft"
    accuracy = Accuracy.EXACT

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.separators) == bool(self.tokenexp):
            raise ModelError("Tokenizer: expected exactly one of separators and tokenexp.")
        if not 1 <= self.mincharnum <= (1 if self._splits_characters else math.inf):
            raise ModelError(f"Tokenizer: mincharnum {self.mincharnum} does not fit its tokens.")

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        op = super().from_onnx(node)
        assert isinstance(op, cls)
        if not op._splits_characters:
            for pattern in op.separators or (op.tokenexp,):
                compile_pattern(pattern, cls.name, longest=True)
        return op

    def infer(self, inputs: Types) -> list[TensorType]:
        x = text_input(inputs, 0, self)
        if x.shape is None:
            return [TensorType(DType.STRING, None)]
        if len(x.shape) not in (1, 2):
            raise ShapeError(f"Tokenizer: its input is {x}; expected [C] or [N,C].")
        return [TensorType(DType.STRING, (*x.shape, fresh_dim()))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        rows = [self._tokens(str(text)) for text in x.flat]
        if any(rows) and self.mark:
            rows = [["\x02", *row, "\x03"] for row in rows]
        filled = filled_rows(rows, self.pad_value)
        return (filled.reshape(*x.shape, filled.shape[1]),)

    @property
    def _splits_characters(self) -> bool:
        """Whether each character is a token: the separator is "", or `tokenexp` is "."."""
        return self.separators == ("",) or self.tokenexp == "."

    def _tokens(self, text: str) -> list[str]:
        """Returns the tokens of `text`, without marks and padding."""
        if self._splits_characters:
            return list(text)
        min_chars, data = self.mincharnum, text.encode()
        if self.tokenexp:
            return [data[a:b].decode() for a, b in self._matches(self.tokenexp, data, min_chars)]
        pieces = [data]
        for separator in self.separators:
            parts = []
            for piece in pieces:
                start = 0
                for a, b in self._matches(separator, piece, 0):
                    parts.append(piece[start:a])
                    start = b if b > a else _next_character(piece, a)
                parts.append(piece[start:])
            pieces = [part for part in parts if len(part.decode()) >= min_chars]
        return [piece.decode() for piece in pieces]

    def _matches(self, pattern: str, data: bytes, least: int) -> Iterator[tuple[int, int]]:
        """Yields start and end of the matches of a pattern that have at least `least` characters.

        At each start the longest match counts; matches do not overlap.

        Args:
            pattern: RE2 pattern.
            data: UTF-8 bytes to search.
            least: Minimum number of characters.
        """
        compiled = compile_pattern(pattern, self.name, longest=True)
        at = 0
        while at <= len(data) and (found := compiled.search(data, at)):
            start, end = found.span()
            at = _next_character(data, start)
            if len(data[start:end].decode()) >= least:
                yield start, end
                at = max(end, at)

"""Streaming versions of the decoders in tokenizer.json, which emit text as soon as it is certain.

Source: the tokenizers library, `tokenizers/src/decoders` and `pre_tokenizers/byte_level.rs`. That
library decodes all tokens at once; each decoder here buffers text that later tokens may change.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import Any, Protocol

from clrt.errors import UnsupportedError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BAD = "\ufffd"
# Replacements of WordPiece's decoder with `cleanup`, in this order.
_WORDPIECE_CLEANUP = (
    *((f" {c}", c) for c in ".?!,"),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    *((f" {x}", x) for x in ("'s", "'ve", "'re")),
)


class DecoderStage(Protocol):
    """One decoder of a chain of streaming decoders: transforms a stream of text chunks."""

    def feed(self, piece: str) -> list[str]:
        """Adds an input chunk; returns the output chunks that are certain now; may be empty."""

    def finish(self) -> list[str]:
        """Returns the remaining output chunks after the last input chunk."""


class Joined:
    """Streaming decoder of a tokenizer without decoder: joins tokens with spaces."""

    def __init__(self) -> None:
        self._between = ""

    def feed(self, piece: str) -> list[str]:
        chunk, self._between = self._between + piece, " "
        return [chunk]

    def finish(self) -> list[str]:
        return []


class ByteLetters:
    """Streaming decoder ByteLevel: maps characters to bytes, and decodes the bytes as UTF-8."""

    _bytes: Mapping[str, int] = {}

    def __init__(self) -> None:
        if not ByteLetters._bytes:
            ByteLetters._bytes = _letters()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: str) -> list[str]:
        try:
            data = bytes(map(self._bytes.__getitem__, piece))
        except KeyError:  # an added token, which is plain text
            data = piece.encode("utf-8")
        return [self._decoder.decode(data)]

    def finish(self) -> list[str]:
        return [self._decoder.decode(b"", final=True)]


def _letters() -> dict[str, int]:
    """Returns the byte that each character of a ByteLevel token stands for.

    Printable bytes are written as themselves, all other bytes as characters from U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + k): b for k, b in enumerate(others)}


class ByteTokens:
    """Streaming decoder ByteFallback: decodes runs of byte tokens such as <0xE2> as UTF-8.

    If a run is invalid UTF-8, each of its bytes becomes U+FFFD. A run is therefore buffered until
    another token follows.
    """

    def __init__(self) -> None:
        self._run = bytearray()

    def feed(self, piece: str) -> list[str]:
        if match := _BYTE_TOKEN.fullmatch(piece):
            self._run.append(int(match[1], 16))
            return []
        return [*self.finish(), piece]

    def finish(self) -> list[str]:
        run, self._run = self._run, bytearray()
        try:
            return [run.decode("utf-8")] if run else []
        except UnicodeDecodeError:
            return [_BAD] * len(run)


class Spaces:
    """Streaming decoder Metaspace: replaces a character, such as "▁", by a space.

    Args:
        letter: The character.
        starts_text: Whether the character is removed from the first token instead.
    """

    def __init__(self, letter: str, starts_text: bool) -> None:
        self._letter = letter
        self._space = "" if starts_text else " "

    def feed(self, piece: str) -> list[str]:
        chunk, self._space = piece.replace(self._letter, self._space), " "
        return [chunk]

    def finish(self) -> list[str]:
        return []


class WordPieceStage:
    """Streaming decoder WordPiece: inserts spaces between words.

    Args:
        prefix: Start of tokens that continue a word, such as "##"; removed.
        tidies: Whether to remove spaces before punctuation and contractions.
    """

    def __init__(self, prefix: str, tidies: bool) -> None:
        self._prefix = prefix
        self._tidies = tidies
        self._first = True

    def feed(self, piece: str) -> list[str]:
        if not self._first:
            is_part = piece.startswith(self._prefix)
            piece = piece.replace(self._prefix, "", 1) if is_part else f" {piece}"
        self._first = False
        for old, new in _WORDPIECE_CLEANUP if self._tidies else ():
            piece = piece.replace(old, new)
        return [piece]

    def finish(self) -> list[str]:
        return []


class EndOfWordStage:
    """Streaming decoder BPEDecoder: replaces a suffix by a space, and removes it at the text's end.

    Args:
        suffix: String that marks the end of a word in tokens, such as "</w>".
    """

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._rest = ""

    def feed(self, piece: str) -> list[str]:
        before = self._rest.replace(self._suffix, " ")
        head, end, tail = piece.partition(self._suffix)
        self._rest = end + tail
        return [before + head]

    def finish(self) -> list[str]:
        return [self._rest.replace(self._suffix, "")]


class Replaced:
    """Streaming decoder Replace: replaces string `old` by `new`."""

    def __init__(self, old: str, new: str) -> None:
        self._old = old
        self._new = new

    def feed(self, piece: str) -> list[str]:
        return [piece.replace(self._old, self._new)]

    def finish(self) -> list[str]:
        return []


class Stripped:
    """Streaming decoder Strip: removes a character from both ends.

    Args:
        letter: The character.
        start: Maximum number of characters removed at the start.
        stop: Maximum number of characters removed at the end.
        whole: Whether to strip the ends of the whole text, not of each chunk.
    """

    def __init__(self, letter: str, start: int, stop: int, whole: bool) -> None:
        self._letter = letter
        self._start = self._remaining = start
        self._stop = stop
        self._whole = whole
        self._tail = ""

    def feed(self, piece: str) -> list[str]:
        if not self._whole:
            self._remaining = self._start
        while self._remaining and piece:
            if piece[0] != self._letter:
                self._remaining = 0
                break
            piece, self._remaining = piece[1:], self._remaining - 1
        if not self._whole:
            return [self._cut(piece)]
        piece = self._tail + piece
        border = len(piece) - self._stop
        self._tail = piece[max(border, 0) :]
        return [piece[: max(border, 0)]]

    def finish(self) -> list[str]:
        return [self._cut(self._tail)] if self._whole else []

    def _cut(self, text: str) -> str:
        """Removes the decoder's character from the end of a text, at most `stop` times."""
        for _ in range(self._stop):
            text = text.removesuffix(self._letter)
        return text


def decoding_steps(decoder: Mapping[str, Any] | None) -> list[DecoderStage]:
    """Creates the streaming decoders of a tokenizer, in order of application.

    Args:
        decoder: Value of `decoder` in tokenizer.json; None for no decoder.

    Raises:
        UnsupportedError: The type or order of the decoders does not allow streaming.
    """
    if decoder is None:
        return [Joined()]
    chain = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    steps: list[DecoderStage] = []
    whole = False  # whether the input is one text, and no longer separate tokens
    for one in chain:
        kind = one["type"]
        if kind == "Sequence" or (step := _step(kind, one, whole)) is None:
            if kind == "Fuse":
                whole = True
                continue
            raise UnsupportedError(
                f"The tokenizer's decoder {kind}{' of a whole text' if whole else ''} cannot "
                "decode single tokens; decode all tokens at once."
            )
        steps.append(step)
        whole = whole or kind == "ByteLevel"
    return steps


def _step(kind: str, one: Mapping[str, Any], whole: bool) -> DecoderStage | None:
    """Creates one streaming decoder; None if its type does not allow streaming.

    Args:
        kind: Type of the decoder.
        one: Configuration of the decoder in tokenizer.json.
        whole: Whether earlier decoders have joined the tokens to one text.
    """
    if kind == "Strip":
        return Stripped(one["content"], one["start"], one["stop"], whole)
    if kind == "Replace":
        old = one["pattern"].get("String")
        # Once the input is one text, a pattern of several characters could span tokens.
        return Replaced(old, one["content"]) if old and not (whole and len(old) > 1) else None
    if whole:
        return None
    if kind == "ByteLevel":
        return ByteLetters()
    if kind == "ByteFallback":
        return ByteTokens()
    if kind == "Metaspace":
        return Spaces(one["replacement"], one.get("prepend_scheme", "always") != "never")
    if kind == "WordPiece":
        return WordPieceStage(one["prefix"], one["cleanup"])
    return EndOfWordStage(one["suffix"]) if kind == "BPEDecoder" else None

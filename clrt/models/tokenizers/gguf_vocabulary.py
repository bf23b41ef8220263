"""The vocabulary in a GGUF file's metadata, checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clrt.errors import warn_user
from clrt.formats.gguf.metadata import Metadata
from clrt.formats.safetensors import damaged
from clrt.models.tokenizers.charsmap import check_charsmap

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# The tokenizers library takes a hundred times as much for some models.
_MAX_TEXT_CHARS = 1 << 24
# Longer tokens are not taken for merged ones: looking for their halves takes the square of it.
_MAX_MERGED_CHARS = 512


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id.

    Attributes:
        file: For messages.
        ids: The id of each token.
        scores: Of each token; None where the file has none.
        types: NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED or BYTE, of each token.
    """

    file: Path
    tokens: tuple[str, ...]
    ids: dict[str, int]
    scores: NDArray[np.float32] | None
    types: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.tokens)

    def of_type(self, *types: int) -> list[str]:
        """The tokens of some types, by id."""
        return [self.tokens[i] for i in np.flatnonzero(np.isin(self.types, types))]

    @property
    def has_bytes(self) -> bool:
        """Whether it has a token for each byte, "<0x00>" to "<0xFF>"."""
        return all(f"<0x{byte:02X}>" in self.ids for byte in range(256))

    def merges(self) -> list[tuple[str, str]]:
        """Which pairs of tokens make a token, the best first: as SentencePiece merges by scores."""
        scores = np.zeros(len(self), np.float32) if self.scores is None else self.scores
        kept = np.flatnonzero(~np.isin(self.types, (UNKNOWN, CONTROL, BYTE)))
        order = kept[np.argsort(-scores[kept], kind="stable")]
        known = {self.tokens[i] for i in kept}
        return [pair for i in order for pair in _halves(self.tokens[i], known)]

    def special_id(self, metadata: Metadata, name: str, default: int | None = None) -> int | None:
        """The id of a special token: "bos" for BOS. None where there is none."""
        key = f"{PREFIX}{name}_token_id"
        given = metadata.integer(key, -1)
        if 0 <= given < len(self):
            return given
        # An id of 32 set bits means that there is none.
        if key in metadata and given not in (-1, 2**32 - 1):
            warn_user(
                f"{self.file} has the {key} {given}, and its vocabulary {len(self)} tokens; "
                "it is ignored."
            )
        return default if default is not None and default < len(self) else None


def _halves(token: str, known: set[str]) -> Iterator[tuple[str, str]]:
    """The pairs of tokens that make a token, that with the longest first one first."""
    if len(token) > _MAX_MERGED_CHARS:
        return
    for at in range(len(token) - 1, 0, -1):
        pair = token[:at], token[at:]
        if pair[0] in known and pair[1] in known:
            yield pair


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """The vocabulary of a file.

    Raises:
        ModelError: It is missing, too large, has a token twice, or scores or types that do not fit.
    """
    file = metadata.file
    tokens = metadata.texts(f"{PREFIX}tokens")
    if sum(map(len, tokens)) > _MAX_TEXT_CHARS:
        raise damaged(file, f"its vocabulary has more than {_MAX_TEXT_CHARS} characters")
    if "" in tokens:
        tokens = tuple(token or f"[EMPTY_{i}]" for i, token in enumerate(tokens))
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
        raise damaged(file, f"its vocabulary has the token '{twice}' twice")
    types = np.full(len(tokens), NORMAL, np.int32)
    if f"{PREFIX}token_type" in metadata:
        types = _per_token(metadata, "token_type", len(tokens)).astype(np.int32)
    scores = None
    if f"{PREFIX}scores" in metadata:
        scores = _per_token(metadata, "scores", len(tokens)).astype(np.float32)
        if not np.isfinite(scores).all():
            raise damaged(file, "a score of its vocabulary is no finite number")
    return Vocabulary(file, tokens, ids, scores, types)


def _per_token(metadata: Metadata, name: str, count: int) -> NDArray[np.generic]:
    """An array that has an element per token, and maybe more."""
    found = metadata.numbers(f"{PREFIX}{name}")
    if len(found) < count:
        what = f"its vocabulary has {count} tokens, and '{PREFIX}{name}' {len(found)} elements"
        raise damaged(metadata.file, what)
    return found[:count]


def read_charsmap(metadata: Metadata) -> bytes:
    """The table by which SentencePiece normalises text, checked; empty where there is none.

    Raises:
        ModelError: The trie or a leaf points out of its table.
    """
    key = f"{PREFIX}precompiled_charsmap"
    if key not in metadata:
        return b""
    raw = metadata.numbers(key).astype(np.uint8).tobytes()
    check_charsmap(raw, metadata.file, key)
    return raw

"""Reads and checks the vocabulary in a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clrt.errors import warn_user
from clrt.formats.gguf.metadata import Metadata
from clrt.formats.safetensors import damaged
from clrt.models.tokenizers.charsmap import check_charsmap
from clrt.util.fast_dataclass import dataclass

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# Maximum characters of all tokens: the tokenizers library needs a hundred times as many bytes for
# some models.
_MAX_TEXT_CHARS = 1 << 24
# Maximum characters of a token whose merges are derived: the time grows with their square.
_MAX_MERGED_CHARS = 512


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a GGUF file, indexed by id.

    Attributes:
        file: The file, for messages.
        tokens: Text of each token.
        ids: Id of each token by its text.
        scores: Score of each token, float32 `[tokens]`; None if the file has none.
        types: int32 `[tokens]`: NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED or BYTE.
    """

    file: Path
    tokens: tuple[str, ...]
    ids: dict[str, int]
    scores: NDArray[np.float32] | None
    types: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.tokens)

    def of_type(self, *types: int) -> list[str]:
        """Returns the texts of all tokens that have one of `types`, in order of ids."""
        return [self.tokens[i] for i in np.flatnonzero(np.isin(self.types, types))]

    @property
    def has_bytes(self) -> bool:
        """Whether there is a token for each byte, "<0x00>" to "<0xFF>"."""
        return all(f"<0x{byte:02X}>" in self.ids for byte in range(256))

    def merges(self) -> list[tuple[str, str]]:
        """Returns the pairs of tokens that BPE merges, best score of the merged token first.

        SentencePiece merges in this order. Each token is split in all ways into two known tokens.
        """
        scores = np.zeros(len(self), np.float32) if self.scores is None else self.scores
        normal = np.flatnonzero(~np.isin(self.types, (UNKNOWN, CONTROL, BYTE)))
        order = normal[np.argsort(-scores[normal], kind="stable")]
        known = {self.tokens[i] for i in normal}
        return [pair for i in order for pair in _halves(self.tokens[i], known)]

    def special_id(self, metadata: Metadata, name: str, default: int | None = None) -> int | None:
        """Returns the id of a special token.

        An id in the metadata that the vocabulary lacks is ignored with a warning.

        Args:
            metadata: Metadata of the file.
            name: Name of the special token in metadata keys: "bos".
            default: Id if the metadata has none; None for none.

        Returns:
            The id; None if the vocabulary has neither the id in the metadata nor the default.
        """
        key = f"{PREFIX}{name}_token_id"
        stored_id = metadata.integer(key, -1)
        if 0 <= stored_id < len(self):
            return stored_id
        # An id of 2^32 - 1 means that there is no token.
        if key in metadata and stored_id not in (-1, 2**32 - 1):
            warn_user(
                f"{self.file} has the {key} {stored_id}, and its vocabulary {len(self)} tokens; "
                "it is ignored."
            )
        return default if default is not None and default < len(self) else None


def _halves(token: str, known: set[str]) -> Iterator[tuple[str, str]]:
    """Yields all pairs of known tokens that concatenate to `token`, longest left token first.

    Yields nothing for a token of more than `_MAX_MERGED_CHARS` characters.
    """
    if len(token) > _MAX_MERGED_CHARS:
        return
    for at in range(len(token) - 1, 0, -1):
        pair = token[:at], token[at:]
        if pair[0] in known and pair[1] in known:
            yield pair


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """Reads and checks the vocabulary of a GGUF file; an empty token becomes "[EMPTY_<id>]".

    Args:
        metadata: Metadata of the file.

    Raises:
        ModelError: The vocabulary is missing, too large, has a token twice, fewer scores or types
            than tokens, or scores that are not finite.
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
            raise damaged(file, "a score of its vocabulary is not a finite number")
    return Vocabulary(file, tokens, ids, scores, types)


def _per_token(metadata: Metadata, name: str, count: int) -> NDArray[np.generic]:
    """Returns the first `count` elements of an array with one element per token.

    Args:
        name: Name of the array after "tokenizer.ggml.": "scores".
        count: Number of tokens.

    Raises:
        ModelError: The array is shorter.
    """
    elements = metadata.numbers(f"{PREFIX}{name}")
    if len(elements) < count:
        what = f"its vocabulary has {count} tokens, and '{PREFIX}{name}' {len(elements)} elements"
        raise damaged(metadata.file, what)
    return elements[:count]


def read_charsmap(metadata: Metadata) -> bytes:
    """Returns SentencePiece's checked normalization table; b"" if there is none.

    Raises:
        ModelError: The table is damaged.
    """
    key = f"{PREFIX}precompiled_charsmap"
    if key not in metadata:
        return b""
    raw = metadata.numbers(key).astype(np.uint8).tobytes()
    check_charsmap(raw, metadata.file, key)
    return raw

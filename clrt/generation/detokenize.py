"""Streaming detokenization: text from tokens that arrive one by one."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from copy import copy
from typing import Any, Protocol

from clrt.generation.token_decoders import decoding_steps


class TokenNames(Protocol):
    """A tokenizer that names its tokens, such as a `tokenizers.Tokenizer`."""

    @property
    def decoder(self) -> Any:
        """Decoder of the tokenizer, of the tokenizers library; None if it has none."""

    def id_to_token(self, id: int) -> str | None:
        """Returns the vocabulary's string of a token; None for an unknown id."""

    def get_added_tokens_decoder(self) -> Any:
        """Returns a mapping from ids to added tokens (`tokenizers.AddedToken`)."""


class TextStream:
    """Converts a stream of tokens to text.

    The concatenated results of `push` and `finish` equal `tokenizer.decode` of all tokens. No text
    is decoded twice, so the time per token is constant. An incomplete UTF-8 character is buffered.
    A run of byte tokens (`<0xE2>`) is buffered until another token follows, since one invalid byte
    turns the whole run into U+FFFD.

    Args:
        tokenizer: A `tokenizers.Tokenizer`.
        skip_special_tokens: Whether special tokens become no text.
        kept: Special tokens that become text even if `skip_special_tokens`.

    Raises:
        UnsupportedError: The tokenizer's decoder does not allow streaming.
    """

    def __init__(
        self,
        tokenizer: TokenNames,
        skip_special_tokens: bool = True,
        kept: Collection[str] = (),
    ) -> None:
        decoder = tokenizer.decoder
        state = None if decoder is None else json.loads(decoder.__getstate__())
        self._state = state
        self._steps = decoding_steps(state)
        self._token = tokenizer.id_to_token
        added = tokenizer.get_added_tokens_decoder().values() if skip_special_tokens else ()
        self._skipped = {token.content for token in added if token.special} - set(kept)

    def anew(self) -> TextStream:
        """Returns a new stream with the same tokenizer and options, to which no token was added."""
        stream = copy(self)
        stream._steps = decoding_steps(self._state)
        return stream

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text that is certain now. Returns "" for an unknown id."""
        token = self._token(token_id)
        if token is None or token in self._skipped:
            return ""
        return self._decode([token])

    def finish(self) -> str:
        """Ends the stream; returns buffered text. An incomplete character becomes U+FFFD."""
        chunks = []
        for k, step in enumerate(self._steps):
            chunks.append(self._decode(step.finish(), k + 1))
        return "".join(chunks)

    def _decode(self, pieces: Sequence[str], first: int = 0) -> str:
        for step in self._steps[first:]:
            pieces = [chunk for piece in pieces for chunk in step.feed(piece)]
        return "".join(pieces)

"""Tokens to text while they come, one by one."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from copy import copy
from typing import Any, Protocol

from clrt.generation.token_decoders import decoding_steps


class TokenNames(Protocol):
    """What is needed of a `tokenizers.Tokenizer`."""

    @property
    def decoder(self) -> Any:
        """Its decoder; None without one."""

    def id_to_token(self, id: int) -> str | None:
        """A token as the vocabulary writes it; None for an id that it does not have."""

    def get_added_tokens_decoder(self) -> Any:
        """The added tokens by id."""


class TextStream:
    """The text of tokens that come one by one.

    What `push` and `finish` give, one after the other, is `tokenizer.decode` of all tokens. Each
    call takes the time of its token: no text is decoded twice. A character whose bytes are not yet
    complete is kept back. So are tokens of bytes (`<0xE2>`) until another token follows, since
    one that is not valid makes U+FFFD of all of them.

    Args:
        tokenizer: A `tokenizers.Tokenizer`.
        skip_special_tokens: Whether special tokens have no text.
        kept: Special tokens that have text all the same.

    Raises:
        UnsupportedError: The tokenizer's decoder gives no text token by token.
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
        """One with the same options, before its first token."""
        made = copy(self)
        made._steps = decoding_steps(self._state)
        return made

    def push(self, token_id: int) -> str:
        """The text that is certain with one more token. An id without a token has no text."""
        token = self._token(token_id)
        if token is None or token in self._skipped:
            return ""
        return self._through([token])

    def finish(self) -> str:
        """The rest of the text. An incomplete character is U+FFFD."""
        found = []
        for k, step in enumerate(self._steps):
            found.append(self._through(step.finish(), k + 1))
        return "".join(found)

    def _through(self, pieces: Sequence[str], first: int = 0) -> str:
        for step in self._steps[first:]:
            pieces = [made for piece in pieces for made in step.feed(piece)]
        return "".join(pieces)

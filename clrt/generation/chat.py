"""A multi-turn chat with a language model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import ref

from clrt.errors import InputError
from clrt.generation.generation_state import GenerationState
from clrt.generation.messages import plain_messages
from clrt.generation.model_spec import LanguageModel
from clrt.generation.prompts import encoded, rendered, tokens_of
from clrt.generation.request import GenerateRequest
from clrt.generation.result import GeneratedText
from clrt.generation.streaming import Ending, GeneratedStream
from clrt.util.active_calls import ActiveCall
from clrt.util.files import atomic_write, expanded, read_regular

if TYPE_CHECKING:
    from clrt.generation.text_generator import TextGenerator

# Maximum size of a file of messages that is read, in bytes.
_MAX_JSON_BYTES = 256 << 20


class Chat:
    """A chat with a language model over several turns. Created by `TextGenerator.chat`.

    A turn computes only new tokens, as long as the cache holds the earlier tokens. Only one turn
    runs at a time.

    Attributes:
        messages: All messages so far, `{"role": …, "content": …}`. The caller may change them
            between turns.

    Args:
        generator: Generator with the model.
        system: System message; None for none.
        request: Options of all turns.
    """

    def __init__(
        self, generator: TextGenerator, system: str | None, request: GenerateRequest
    ) -> None:
        self.messages: list[dict[str, Any]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self._start = list(self.messages)
        self._generator = generator
        self._request = request
        self._lock = RLock()
        # The call in progress that started the current turn, and the turn's stream; None between
        # turns.
        self._turn: tuple[ActiveCall, ref[GeneratedStream] | None] | None = None
        # Text of the conversation so far (rendered by the template and generated), and its tokens.
        self._text, self._tokens = "", list[int]()

    def __repr__(self) -> str:
        return f"<clrt.Chat of {len(self.messages)} messages with {self._generator!r}>"

    def send(self, message: str | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> GeneratedText:
        """Sends a message and returns the answer; message and answer are added to `messages`.

        Args:
            message: Text of the user; or a message (a mapping with `role` and `content`, such as
                the result of a tool), or a list of messages.

        Raises:
            InputError: The chat is longer than the context, the message is invalid, or another turn
                is running.
            OutOfMemoryError: The text does not fit into the cache.
        """
        with self.stream(message) as pieces:
            return pieces.result

    def stream(
        self, message: str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> GeneratedStream:
        """Sends a message and streams the answer.

        Message and answer are added to `messages` once the stream ends or is closed.

        Args:
            message: Text of the user, a message or several messages, as for `send`.

        Raises:
            ClrtError: The chat is too long, the message is invalid, or another turn is running.
        """
        messages, call = _messages(message), ActiveCall()
        with self._lock:
            if self._is_under_way():
                raise InputError(
                    "A turn of this chat is in progress; read its answer, or close it."
                )
            self._turn = call, None
        try:
            turn = plain_messages([*self.messages, *messages])
            text = rendered(self._generator._model, turn, self._request.chat)
            tokens = self._continued_tokens(text) or tokens_of(
                self._generator._model, turn, self._request.chat
            )
            ending = self._ending(messages, text)
            stream = self._generator._stream(tokens, self._request, ending)
            self._turn = call, ref(stream)
            return stream
        finally:
            call.end()

    def _is_under_way(self) -> bool:
        """Whether a turn is running: its stream is being created, or is open."""
        if self._turn is None:
            return False
        call, stream_ref = self._turn
        is_over = call.is_over  # drops the variables of an interrupted call, its stream among them
        if stream_ref is None:
            return not is_over
        stream = stream_ref()
        return stream is not None and stream.is_open

    def reset(self) -> None:
        """Restarts the chat with the system message only."""
        self.messages = list(self._start)
        self._text, self._tokens = "", []

    def save(self, path: str | Path) -> None:
        """Writes the messages to a JSON file.

        Raises:
            InputError: The file cannot be written, or a message is not JSON.
        """
        try:
            text = json.dumps(self.messages, ensure_ascii=False, indent=1)
        except (TypeError, ValueError) as error:
            raise InputError(f"The messages of this chat are not JSON: {error}.") from error
        with atomic_write(expanded(path)) as stream:
            stream.write(text.encode("utf-8"))

    def load(self, path: str | Path) -> None:
        """Replaces the messages of the chat by the messages in a file that `save` wrote.

        Raises:
            InputError: The file cannot be read or does not hold messages.
        """
        file = expanded(path)
        try:
            messages = json.loads(read_regular(file, _MAX_JSON_BYTES).decode("utf-8"))
            plain_messages(messages)
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(
                f"'{file}' holds no chat messages ({error}); pass a file written by `save`."
            ) from error
        self.messages = messages
        self._text, self._tokens = "", []

    def _ending(self, given: list[dict[str, Any]], text: str) -> Ending:
        """Returns a callback for the end of a turn that records the turn's messages and tokens.

        Args:
            given: Messages that the turn sends.
            text: Rendered prompt of the turn.
        """

        def end(answer: GenerationState, result: GeneratedText | None) -> None:
            if result is not None:
                self.messages += [*given, result.message]
                self._note(text, answer, result)

        return end

    def _note(self, text: str, answer: GenerationState, result: GeneratedText) -> None:
        """Records the tokens of an ended turn, so that the next turn's prompt can begin with them.

        Does nothing unless the generated tokens spell exactly the text of the result.

        Args:
            text: Rendered prompt of the turn.
            answer: State of the ended generation.
            result: Result of the generation.
        """
        tokens = list(result.tokens)
        ended = bool(tokens) and tokens[-1] in answer.ends
        if ended:
            tokens.pop()
        # For other finish reasons the tokens spell more than the text: a stop string, or text that
        # could have become one.
        spelled = ended or result.finish_reason in ("length", "constraint")
        special = _added(self._generator._model, special=True)
        includes = self._request.sampling.include_stop
        if spelled and not includes and not special.keys() & set(tokens):
            self._text, self._tokens = text + result.text, [*answer.prompt, *tokens]

    def _continued_tokens(self, text: str) -> list[int]:
        """Returns the tokens of a rendered prompt, beginning with the last turn's tokens.

        The generated tokens, which the cache holds, may differ from the tokenization of their text.
        They can be reused if the prompt begins with the last turn's text and an added token of the
        tokenizer follows: tokenization splits text before added tokens. Returns [] if they cannot.

        Args:
            text: Rendered prompt of the new turn.
        """
        if not self._tokens or not text.startswith(self._text):
            return []
        rest = text[len(self._text) :]
        model = self._generator._model
        if not any(rest.startswith(content) for content in _added(model).values()):
            return []
        return [*self._tokens, *encoded(model.tokenizer, rest, special=False)]


def _messages(given: str | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages that a user sends: a string becomes one message of role "user"."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if isinstance(given, Mapping):
        return [dict(given)]
    return [dict(one) for one in plain_messages(given)]


def _added(model: LanguageModel, special: bool = False) -> dict[int, str]:
    """Returns the texts of the tokenizer's added tokens by id.

    Args:
        model: Language model with the tokenizer.
        special: Whether to return special tokens only.
    """
    added = model.tokenizer.get_added_tokens_decoder()
    return {k: token.content for k, token in added.items() if token.special or not special}

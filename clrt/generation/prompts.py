"""Prompts: accepted forms, and conversion to tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from clrt.errors import InputError
from clrt.generation.call_formats import with_text_arguments
from clrt.generation.messages import plain_messages, short, valid_text
from clrt.generation.model_spec import LanguageModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Prompt: TypeAlias = "str | Sequence[int] | Sequence[Mapping[str, Any]]"
"""A string, tokens, or the messages of a chat."""


@dataclass(frozen=True)
class ChatFormat:
    """Tools and variables with which messages are rendered.

    Attributes:
        tools: JSON schemas of functions that the model may call.
        variables: Further variables of the chat template.
    """

    tools: Sequence[Any] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


def several(prompt: object) -> list[Any] | None:
    """Returns the prompts of a list of prompts; None for a single prompt.

    Raises:
        InputError: It is neither.
    """
    if isinstance(prompt, str | np.ndarray):
        return None
    if isinstance(prompt, Mapping) or not isinstance(prompt, Sequence):
        raise InputError(
            f"The prompt is {short(prompt)}; it is a text, a list of messages or of tokens, or a "
            "list of prompts."
        )
    if not prompt:
        raise InputError("The prompt is an empty list; give at least one token or message.")
    first = prompt[0]
    return None if isinstance(first, Integral | Mapping) else list(prompt)


PLAIN = ChatFormat()


def tokens_of(model: LanguageModel, prompt: object, chat: ChatFormat = PLAIN) -> list[int]:
    """Returns the tokens of a prompt, one or more.

    A string gets the special tokens that the tokenizer adds; messages those of the chat template.

    Raises:
        InputError: The prompt is invalid, has no tokens or an unknown one; or it has messages, and
            the model no chat template.
        ModelError: The chat template exceeds its budget.
        UnsupportedError: Jinja is not installed.
    """
    if isinstance(prompt, str):
        tokens = encoded(model.tokenizer, prompt)
    elif several(prompt) is not None:
        raise InputError(f"The prompt is {short(prompt)}; several prompts are one list of them.")
    else:
        items: Sequence[Any] = prompt  # type: ignore[assignment]
        if len(items) and isinstance(items[0], Mapping):
            tokens = encoded(model.tokenizer, rendered(model, items, chat), special=False)
        else:
            tokens = [_token(model, token) for token in items]
    if not tokens:
        raise InputError("The prompt has no tokens; give at least one.")
    wrong = next((token for token in tokens if token >= model.vocabulary), None)
    if wrong is not None:
        raise InputError(
            f"The prompt has token {wrong}; the model has embeddings of 0 to "
            f"{model.vocabulary - 1}."
        )
    return tokens


def rendered(model: LanguageModel, messages: object, chat: ChatFormat) -> str:
    """Renders messages as text that ends with the start of an assistant message.

    Raises:
        InputError, ModelError, UnsupportedError: As `tokens_of`.
    """
    plain: Sequence[Mapping[str, Any]] = plain_messages(messages)
    if any("tool_calls" in message for message in plain):
        call_format = model.call_format
        if call_format is not None and call_format.text_arguments:
            plain = [with_text_arguments(message) for message in plain]
    return model.chat_template.render(plain, chat.tools, **chat.variables)


def encoded(tokenizer: Tokenizer, text: str, special: bool = True) -> list[int]:
    """Tokenizes a text.

    Args:
        special: Whether the tokenizer adds special tokens.

    Raises:
        InputError: It is not valid Unicode.
    """
    text = valid_text(text, "The prompt")
    from clrt.models.tokenizers.checked_tokenizer import CheckedTokenizer

    return list(CheckedTokenizer(tokenizer).encode(text, add_special_tokens=special).ids)


def _token(model: LanguageModel, token: object) -> int:
    if isinstance(token, bool) or not isinstance(token, Integral) or int(token) < 0:
        raise InputError(
            f"The prompt has token {short(token)}; there are 0 to {model.vocabulary - 1}."
        )
    return int(token)

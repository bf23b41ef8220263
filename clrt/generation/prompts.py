"""Prompts: accepted forms, and conversion to tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from clrt.errors import InputError
from clrt.generation.call_formats import with_text_arguments
from clrt.generation.messages import plain_messages, short, valid_text
from clrt.generation.model_spec import LanguageModel
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Prompt: TypeAlias = "str | Sequence[int] | Sequence[Mapping[str, Any]]"
"""A string, tokens, or the messages of a chat."""


@dataclass(frozen=True)
class ChatFormat:
    """Tools and variables with which a chat template renders messages.

    Attributes:
        tools: JSON schemas of functions that the model may call; None for none.
        variables: Values of other variables of the chat template, by name.
    """

    tools: Sequence[Any] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


def several(prompt: object) -> list[Any] | None:
    """Returns `prompt` as a list if it is a list of prompts; None if it is a single prompt.

    Args:
        prompt: A string, tokens or the messages of a chat; or a list of these.

    Raises:
        InputError: The value is neither a prompt nor a list, or is an empty list.
    """
    if isinstance(prompt, str | np.ndarray):
        return None
    if isinstance(prompt, Mapping) or not isinstance(prompt, Sequence):
        raise InputError(
            f"The prompt is {short(prompt)}; expected a text, a list of messages or of tokens, or "
            "a list of prompts."
        )
    if not prompt:
        raise InputError("The prompt is an empty list; give at least one token or message.")
    first = prompt[0]
    return None if isinstance(first, Integral | Mapping) else list(prompt)


PLAIN = ChatFormat()


def tokens_of(model: LanguageModel, prompt: object, chat: ChatFormat = PLAIN) -> list[int]:
    """Returns the tokens of a prompt, one or more.

    The tokenizer adds special tokens to a string; for messages the chat template adds them.

    Args:
        model: The language model.
        prompt: A string, tokens, or the messages of a chat.
        chat: Tools and variables to render messages with.

    Raises:
        InputError: The prompt is invalid, or has no tokens or an unknown one; or it consists of
            messages and the model has no chat template.
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
    """Renders messages by the model's chat template, up to the start of the assistant's answer.

    Raises:
        InputError: A message is invalid, or the model has no chat template.
        ModelError: The chat template is invalid or exceeds its budget.
        UnsupportedError: Jinja is not installed.
    """
    plain: Sequence[Mapping[str, Any]] = plain_messages(messages)
    if any("tool_calls" in message for message in plain):
        call_format = model.call_format
        if call_format is not None and call_format.text_arguments:
            plain = [with_text_arguments(message) for message in plain]
    return model.chat_template.render(plain, chat.tools, **chat.variables)


def encoded(tokenizer: Tokenizer, text: str, special: bool = True) -> list[int]:
    """Returns the tokens of a string.

    Args:
        tokenizer: Tokenizer of the model.
        text: The string.
        special: Whether the tokenizer adds special tokens, such as BOS.

    Raises:
        InputError: The string is not valid Unicode.
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

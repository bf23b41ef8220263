"""Results of text generation."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from clrt.util.fast_dataclass import dataclass

FinishReason = Literal["stop", "length", "cancelled", "constraint"]
"""Why a text ended: a stop string or end token; the length limit; `cancel`; a constraint after
which no token may follow."""


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of a token.

    Attributes:
        token: Token id.
        logprob: Natural logarithm of the token's probability, before temperature, top_k and other
            options.
        top: (token, log-probability) of the most likely tokens at the same position, likeliest
            first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TextTimings:
    """Timings and token counts of a generation.

    Attributes:
        load_s: Seconds for loading the model; 0 except for a generator's first result.
        prompt_s: Seconds from the request to the first token, without loading.
        prompt_tokens: Number of prompt tokens computed, without prompt tokens found in the cache.
        tokens_s: Seconds from the first to the last token.
        tokens: Number of generated tokens.
        drafted: Number of draft tokens run, from a draft model or prompt lookup.
        accepted: Number of accepted draft tokens, which needed no step of their own.
    """

    load_s: float
    prompt_s: float
    prompt_tokens: int
    tokens_s: float
    tokens: int
    drafted: int = 0
    accepted: int = 0

    @property
    def prompt_tokens_per_s(self) -> float:
        """Prompt tokens per second up to the first generated token; 0 if no time passed."""
        return _rate(self.prompt_tokens, self.prompt_s)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second after the first token; 0 if there is only one token."""
        return _rate(self.tokens - 1, self.tokens_s)

    def __str__(self) -> str:
        return (
            f"load {self.load_s:.2f} s; prompt {self.prompt_tokens} tokens in {self.prompt_s:.2f} "
            f"s ({self.prompt_tokens_per_s:.1f}/s); answer {self.tokens} tokens in "
            f"{self.tokens_s:.2f} s ({self.tokens_per_s:.1f}/s)"
            + (f"; {self.guesses}" if self.drafted else "")
        )

    @property
    def guesses(self) -> str:
        """Number of draft tokens and of accepted ones, such as "3 of 8 guessed tokens accepted"."""
        return f"{self.accepted} of {self.drafted} guessed tokens accepted"


@dataclass(frozen=True)
class ToolCall:
    """A function call requested by the model.

    Attributes:
        name: Name of the function, which the model may have made up.
        arguments: JSON values by parameter name; not checked against the function's schema.
        id: Identifier of the call: from the model if valid, else generated; "" while parsing.
    """

    name: str
    arguments: dict[str, Any] = field(hash=False)
    id: str = ""

    def as_message_part(self) -> dict[str, Any]:
        """Returns the call as an entry of `tool_calls` of a chat message."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class GeneratedText:
    """One generated text.

    Attributes:
        text: Text without special tokens, except special tokens of tool calls.
        tokens: Token ids, with special tokens and the end token.
        finish_reason: Why generation ended.
        prompt_tokens: Number of prompt tokens.
        logprobs: Log-probability of each token; None if not requested.
        timings: Timings; None if not measured.
        tool_calls: Tool calls in the text, in order; () without tools.
        content: Text without the tool calls; None if the text has no tool calls.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    timings: TextTimings | None = field(default=None, compare=False)
    tool_calls: tuple[ToolCall, ...] = ()
    content: str | None = None

    @property
    def message(self) -> dict[str, Any]:
        """Assistant message of a chat, with the text and tool calls, to append to the messages."""
        if not self.tool_calls:
            return {"role": "assistant", "content": self.text}
        calls = [call.as_message_part() for call in self.tool_calls]
        return {"role": "assistant", "content": self.content or "", "tool_calls": calls}

    def __str__(self) -> str:
        return self.text


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0

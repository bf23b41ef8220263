"""What comes of generating a text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "cancelled", "constraint"]
"""Why a text ends: a stop text or token; its number of tokens; `cancel`; a constraint that is met
and allows no more."""


@dataclass(frozen=True)
class TokenLogprob:
    """How likely a token was.

    Attributes:
        token: Its id.
        logprob: The natural logarithm of its probability, before temperature and what picks
            among tokens.
        top: The likeliest tokens at its place, likeliest first, with theirs.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TextTimings:
    """Where the time of an answer went.

    Attributes:
        load_s: Seconds until the model was ready; 0 if it was.
        prompt_s: Seconds until the first token, without loading.
        prompt_tokens: Tokens that were computed for the prompt, without those that a cache had.
        tokens_s: Seconds from the first token to the last.
        tokens: Tokens of the answer.
        drafted: Tokens that were guessed ahead, by a draft model or by lookup.
        accepted: How many of these were right, and came without a step of their own.
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
        """Tokens of the prompt per second; 0 where no time passed."""
        return _rate(self.prompt_tokens, self.prompt_s)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second after the first one; 0 where there are no others."""
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
        """What came of guesses, in words."""
        return f"{self.accepted} of {self.drafted} guessed tokens accepted"


@dataclass(frozen=True)
class ToolCall:
    """A call of a function that an answer asks for.

    Attributes:
        name: The function's; the model may have made it up.
        arguments: By name, as JSON has them; nothing checks them against the function's schema.
        id: Tells calls of a chat apart; the model's own if it gave one.
    """

    name: str
    arguments: dict[str, Any] = field(hash=False)
    id: str = ""

    def as_message_part(self) -> dict[str, Any]:
        """An entry of `tool_calls` of a message."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class GeneratedText:
    """One answer.

    Attributes:
        text: Its text, without special tokens, but for those of tool calls.
        tokens: Its ids, those of special tokens and of the one that ended it included.
        finish_reason: Why it ends.
        prompt_tokens: Tokens of the prompt.
        logprobs: One for each token; None if they were not asked for.
        timings: Where the time went; None where that was not measured.
        tool_calls: Calls of the tools that were given, in the order of the text.
        content: The text without its calls; None where it has none.
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
        """The answer as a message of a chat."""
        if not self.tool_calls:
            return {"role": "assistant", "content": self.text}
        calls = [call.as_message_part() for call in self.tool_calls]
        return {"role": "assistant", "content": self.content or "", "tool_calls": calls}

    def __str__(self) -> str:
        return self.text


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0

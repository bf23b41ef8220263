"""How speech is turned into text: what a call may choose."""

from __future__ import annotations

from dataclasses import dataclass, field

from clrt.errors import InputError

_MOST_TEMPERATURE = 10.0


@dataclass(frozen=True)
class Fallback:
    """When the text of a window is drawn anew, at a higher temperature, or is none.

    Attributes:
        temperatures: In the order in which they are tried. At 0 the likeliest token is taken.
        compression_ratio: A text that shrinks by more than that factor repeats itself, and is drawn
            anew; None for any.
        logprob: So is one whose tokens have a lower mean log-probability; None for any.
        no_speech: A window of at least this probability that nobody speaks has no text, if the text
            has a lower mean log-probability than `logprob`, too; None for windows that all have.

    Raises:
        InputError: A value is out of range.

    Source: Radford et al. (2022), 4.5; the defaults are those of openai/whisper.
    """

    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio: float | None = 2.4
    logprob: float | None = -1.0
    no_speech: float | None = 0.6

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise InputError("temperatures is empty; give at least one, such as (0.0,).")
        for one in self.temperatures:
            _check("A temperature", one, 0.0, _MOST_TEMPERATURE)
        _check("compression_ratio", self.compression_ratio, 0.0, 1e6)
        _check("logprob", self.logprob, -1e6, 0.0)
        _check("no_speech", self.no_speech, 0.0, 1.0)


@dataclass(frozen=True)
class SpeechOptions:
    """What a call asks for.

    Attributes:
        language: What is spoken, as a code or a name; None lets the model find out.
        task: "transcribe", or "translate" into English.
        timestamps: Whether parts have times within a window.
        prompt: Text that seems to come before the sound: names, and how they are written.
        condition: Whether a window is told what was said before it.
        fallback: When a text is drawn anew.
        seed: Of what is drawn.
    """

    language: str | None = None
    task: str = "transcribe"
    timestamps: bool = True
    prompt: str | None = None
    condition: bool = True
    fallback: Fallback = field(default_factory=Fallback)
    seed: int = 0


def _check(name: str, value: float | None, low: float, high: float) -> None:
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise InputError(f"{name} is {value!r}; expected {low:g} to {high:g}.")

"""Options of speech to text."""

from __future__ import annotations

from dataclasses import dataclass, field

from clrt.errors import InputError

_MAX_TEMPERATURE = 10.0


@dataclass(frozen=True)
class Fallback:
    """Limits that decide whether a window is decoded again at a higher temperature, or is silence.

    Attributes:
        temperatures: Temperatures in the order of attempts. 0 selects the most likely token.
        compression_ratio: Maximum compression ratio of a window's text. A higher one indicates
            repetition, and the window is decoded again. None for no limit.
        logprob: Minimum mean log-probability of a window's tokens, below which the window is
            decoded again; None for no limit.
        no_speech: Probability of no speech above which a window has no text, if its mean
            log-probability is also below `logprob`; None to keep all texts.

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
            _check("A temperature", one, 0.0, _MAX_TEMPERATURE)
        _check("compression_ratio", self.compression_ratio, 0.0, 1e6)
        _check("logprob", self.logprob, -1e6, 0.0)
        _check("no_speech", self.no_speech, 0.0, 1.0)


@dataclass(frozen=True)
class SpeechOptions:
    """Options of a transcription.

    Attributes:
        language: Spoken language, as a code or a name; None to detect it.
        task: "transcribe", or "translate" into English.
        timestamps: Whether the model predicts times within each window of 30 s; if not, a window is
            one segment.
        prompt: Text assumed to precede the audio; it can show the spelling of names. None for none.
        condition: Whether a window is conditioned on the text of the windows before.
        fallback: Limits for decoding a window again.
        seed: Seed of the random draws at temperatures above 0.
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

"""Options of speech to text."""

from __future__ import annotations

from dataclasses import field

from clrt.errors import InputError
from clrt.util.fast_dataclass import dataclass
from clrt.util.renamed import renamed, renamed_arguments

# Sanity limit of sampling temperatures.
_MAX_TEMPERATURE = 10.0
# Deprecated name of a threshold -> its current name.
_RENAMED = {
    "compression_ratio": "compression_ratio_threshold",
    "logprob": "logprob_threshold",
    "no_speech": "no_speech_threshold",
}


@renamed_arguments(**_RENAMED)
@renamed(**_RENAMED)
@dataclass(frozen=True)
class TemperatureFallback:
    """Limits that decide if a window of audio is silence, or decoded again at a higher temperature.

    Attributes:
        temperatures: Temperatures in the order of attempts. 0 selects the most likely token.
        compression_ratio_threshold: Maximum compression ratio of a window's text. A higher ratio
            indicates repetition, and the window is decoded again. None for no limit.
        logprob_threshold: Minimum mean log-probability of a window's tokens, below which the window
            is decoded again; None for no limit.
        no_speech_threshold: Maximum probability of no speech. A window above it counts as silence
            if its mean log-probability is also below `logprob_threshold`. None to keep all texts.

    Raises:
        InputError: A value is out of range.

    Source: Radford et al. (2022), 4.5; the defaults are those of openai/whisper.
    """

    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio_threshold: float | None = 2.4
    logprob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise InputError("temperatures is empty; give at least one, such as (0.0,).")
        for one in self.temperatures:
            _check("A temperature", one, 0.0, _MAX_TEMPERATURE)
        _check("compression_ratio_threshold", self.compression_ratio_threshold, 0.0, 1e6)
        _check("logprob_threshold", self.logprob_threshold, -1e6, 0.0)
        _check("no_speech_threshold", self.no_speech_threshold, 0.0, 1.0)


@dataclass(frozen=True)
class SpeechOptions:
    """Options of a transcription.

    Attributes:
        language: Spoken language, as a code or a name; None to detect it.
        task: "transcribe", or "translate" into English.
        timestamps: Whether the model predicts times within each window of 30 s; if not, a window is
            one segment.
        prompt: Text assumed to precede the audio, for example to show the spelling of names; None
            for none.
        condition_on_previous_text: Whether a window is conditioned on the text of earlier windows.
        fallback: Limits for decoding a window again.
        seed: Seed of the random draws at temperatures above 0.
    """

    language: str | None = None
    task: str = "transcribe"
    timestamps: bool = True
    prompt: str | None = None
    condition_on_previous_text: bool = True
    fallback: TemperatureFallback = field(default_factory=TemperatureFallback)
    seed: int = 0


def _check(name: str, value: float | None, low: float, high: float) -> None:
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise InputError(f"{name} is {value!r}; expected {low:g} to {high:g}.")

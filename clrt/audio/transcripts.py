"""What is said in a sound, as text with times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clrt.audio.subtitles import srt_entries, vtt_entries


@dataclass(frozen=True)
class TranscriptSegment:
    """A part of what is said.

    Attributes:
        start, end: Seconds from the start of the sound.
        text: With the space in front that the model puts there.
        logprob: Mean log-probability of its tokens; None of models that have no tokens.
        no_speech: How likely the model finds that nobody speaks in the window that it is from; None
            of models that do not say.
        language: Its code, such as "en"; "" where the model has none.
        tokens: The model's, times included.
    """

    start: float
    end: float
    text: str
    logprob: float | None = None
    no_speech: float | None = None
    language: str = ""
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Transcript:
    """What is said in a sound.

    Attributes:
        text: All of it. `str` gives it, too.
        segments: Its parts in their order.
        language: The code of the language that is spoken, such as "en"; "" where the model has
            none.
        duration: Seconds of the sound.
    """

    text: str
    segments: tuple[TranscriptSegment, ...]
    language: str
    duration: float

    @classmethod
    def of(
        cls, segments: Sequence[TranscriptSegment], language: str, duration: float
    ) -> Transcript:
        """What parts say together."""
        text = "".join(segment.text for segment in segments).strip()
        return cls(text, tuple(segments), language, duration)

    def __str__(self) -> str:
        return self.text

    def to_srt(self) -> str:
        """The segments as a subtitle file of SubRip (.srt)."""
        return "".join(srt_entries(self.segments))

    def to_vtt(self) -> str:
        """The segments as a subtitle file of WebVTT (.vtt)."""
        return "".join(vtt_entries(self.segments))

    def to_dict(self) -> dict[str, Any]:
        """All of it in a form that JSON has."""
        return asdict(self)

"""Transcripts: recognized text with times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from clrt.audio.subtitles import srt_entries, vtt_entries
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class TranscriptSegment:
    """A segment of a transcript: text with its start and end time.

    Attributes:
        start: Start of the segment, in seconds from the start of the audio.
        end: End of the segment, in seconds from the start of the audio.
        text: Text, with a leading space if the model outputs one.
        logprob: Mean log-probability of the segment's tokens; None for CTC models.
        no_speech: Probability of no speech in the segment's window; None for models that do not
            estimate it.
        language: Language code, such as "en"; "" if the model has none.
        tokens: The segment's token ids, timestamps included; () for CTC models.
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
    """Transcript of an audio input; `str(transcript)` returns its text.

    Attributes:
        text: Text of all segments.
        segments: Segments in order of time.
        language: Code of the spoken language, such as "en"; "" if the model has none.
        duration: Duration of the audio, in seconds.
    """

    text: str
    segments: tuple[TranscriptSegment, ...]
    language: str
    duration: float

    @classmethod
    def of(
        cls, segments: Sequence[TranscriptSegment], language: str, duration: float
    ) -> Transcript:
        """Creates a transcript from segments; its text is the joined texts of the segments.

        Args:
            segments: Segments in order of time.
            language: Language code; "" if the model has none.
            duration: Duration of the audio, in seconds.
        """
        text = "".join(segment.text for segment in segments).strip()
        return cls(text, tuple(segments), language, duration)

    def __str__(self) -> str:
        return self.text

    def to_srt(self) -> str:
        """Formats the segments as a SubRip file (.srt)."""
        return "".join(srt_entries(self.segments))

    def to_vtt(self) -> str:
        """Formats the segments as a WebVTT file (.vtt)."""
        return "".join(vtt_entries(self.segments))

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields as JSON-compatible values."""
        return asdict(self)

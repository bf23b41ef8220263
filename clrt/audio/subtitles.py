"""Formats segments as subtitle files: SubRip (.srt) and WebVTT (.vtt).

Source: W3C, WebVTT: The Web Video Text Tracks Format; SubRip has no standard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clrt.audio.transcripts import TranscriptSegment


def srt_entries(segments: Iterable[TranscriptSegment]) -> Iterator[str]:
    """Yields the text of an .srt file, one entry per segment."""
    for number, segment in enumerate(segments, start=1):
        text = _line(segment.text).replace("-->", "->")
        yield f"{number}\n{_clock(segment.start, ',')} --> {_clock(segment.end, ',')}\n{text}\n\n"


def vtt_entries(segments: Iterable[TranscriptSegment]) -> Iterator[str]:
    """Yields the text of a .vtt file: first the header, then one entry per segment."""
    yield "WEBVTT\n\n"
    for segment in segments:
        text = _line(segment.text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        yield f"{_clock(segment.start, '.')} --> {_clock(segment.end, '.')}\n{text}\n\n"


def _line(text: str) -> str:
    """Joins the lines of a text to one, because an empty line would end the subtitle entry."""
    return " ".join(text.split())


def _clock(seconds: float, mark: str) -> str:
    """Formats a time as HH:MM:SS, decimal mark and milliseconds.

    Args:
        seconds: The time, in seconds.
        mark: Decimal mark.
    """
    whole, thousandths = divmod(round(max(seconds, 0.0) * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}{mark}{thousandths:03}"

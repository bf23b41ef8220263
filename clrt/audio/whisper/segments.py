"""Splits the tokens of a window into segments with times.

Source: openai/whisper, `whisper/transcribe.py`; transformers, `WhisperGenerationMixin`.
"""

from __future__ import annotations

from collections.abc import Sequence

from clrt.util.fast_dataclass import dataclass

# Feature frames per timestamp step, and timestamp steps per second.
FRAMES_PER_STEP = 2
STEPS_PER_SECOND = 50


@dataclass(frozen=True)
class WindowSegment:
    """A segment of speech within a window of 30 s.

    Attributes:
        start: Start time, in steps of 0.02 s from the window's start.
        end: End time, in steps of 0.02 s from the window's start.
        first: Index of the segment's first token in the window's tokens.
        tokens: The segment's tokens, timestamps included.
    """

    start: int
    end: int
    first: int
    tokens: tuple[int, ...]


def split_window(
    tokens: Sequence[int], first_time: int, frames: int
) -> tuple[list[WindowSegment], int]:
    """Splits the tokens of a window into segments by their timestamps.

    Two consecutive timestamps end a segment and start the next one. Tokens after the last two
    consecutive timestamps are cut off, unless the last token is a timestamp: the next window
    decodes their audio again. Without two consecutive timestamps, all tokens are one segment.

    Args:
        tokens: Tokens of the window, without the end token.
        first_time: Timestamp token of the window's start.
        frames: Number of frames of the window that contain audio.

    Returns:
        The segments, and the number of frames after which the next window starts.
    """
    times = [token >= first_time for token in tokens]
    ends = [k + 1 for k in range(len(tokens) - 1) if times[k] and times[k + 1]]
    closed = times[-2:] == [False, True]
    if not ends:
        return [_whole(tokens, first_time, frames)], frames
    if closed:
        ends.append(len(tokens))
    else:
        ends[-1] += 1  # includes the second timestamp, which starts an unfinished segment
    parts, first = [], 0
    for number, end in enumerate(ends, start=1):
        segment_tokens = tuple(tokens[first:end])
        last = segment_tokens[-1] if closed or number < len(ends) else segment_tokens[-2]
        parts.append(
            WindowSegment(segment_tokens[0] - first_time, last - first_time, first, segment_tokens)
        )
        first = end
    return parts, frames if closed else parts[-1].end * FRAMES_PER_STEP


def _whole(tokens: Sequence[int], first_time: int, frames: int) -> WindowSegment:
    """Returns the tokens of a window as one segment.

    The segment ends at the last timestamp, or at the end of the audio if no timestamp is above 0.

    Args:
        tokens: Tokens of the window, without the end token.
        first_time: Timestamp token of the window's start.
        frames: Number of frames of the window that contain audio.
    """
    last = next((t for t in reversed(tokens) if t >= first_time), first_time)
    end = last - first_time if last > first_time else frames // FRAMES_PER_STEP
    return WindowSegment(0, end, 0, tuple(tokens))

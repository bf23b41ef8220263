"""What the tokens of a window say: parts with times, and where the next window begins.

Source: openai/whisper, `whisper/transcribe.py`; transformers, `WhisperGenerationMixin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Frames of features per step of time, and steps of time a second.
FRAMES_PER_STEP = 2
STEPS_PER_SECOND = 50


@dataclass(frozen=True)
class WindowPart:
    """A part of a window.

    Attributes:
        start, end: Steps of 0.02 s from the window's start.
        first: Where its tokens begin in those of the window.
        tokens: With their times.
    """

    start: int
    end: int
    first: int
    tokens: tuple[int, ...]


def split_window(
    tokens: Sequence[int], first_time: int, frames: int
) -> tuple[list[WindowPart], int]:
    """The parts of a window, and how many frames it is done with.

    Where two times follow each other a part ends and the next one begins. What follows the last
    such place is cut in the middle, unless a time ends it, and is heard again in the next window.

    Args:
        tokens: Without the one that ends the text.
        first_time: The token of the window's start.
        frames: That the sound has in the window.
    """
    times = [token >= first_time for token in tokens]
    ends = [k + 1 for k in range(len(tokens) - 1) if times[k] and times[k + 1]]
    closed = times[-2:] == [False, True]
    if not ends:
        return [_whole(tokens, first_time, frames)], frames
    if closed:
        ends.append(len(tokens))
    else:
        ends[-1] += 1  # the second time says that another part would follow
    parts, first = [], 0
    for number, end in enumerate(ends, start=1):
        own = tuple(tokens[first:end])
        last = own[-1] if closed or number < len(ends) else own[-2]
        parts.append(WindowPart(own[0] - first_time, last - first_time, first, own))
        first = end
    return parts, frames if closed else parts[-1].end * FRAMES_PER_STEP


def _whole(tokens: Sequence[int], first_time: int, frames: int) -> WindowPart:
    """A window that is one part: it ends with its last time, if it has one, else with the sound."""
    last = next((t for t in reversed(tokens) if t >= first_time), first_time)
    end = last - first_time if last > first_time else frames // FRAMES_PER_STEP
    return WindowPart(0, end, 0, tuple(tokens))

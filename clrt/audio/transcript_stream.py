"""Segments of a sound as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event

from clrt.audio.transcripts import Transcript, TranscriptSegment


class TranscriptStream(Iterator[TranscriptSegment]):
    """Segments of a sound as they come: an iterator, for one thread at a time.

    Closing it ends it: where another thread waits for a segment, after the token that is on its
    way.

    Attributes:
        duration: Seconds of the sound.

    Args:
        segments: Where they come from; they end soon after `ended` is set.
        language: Gives the code of the language, once it is known.
        ended: Is set when no more are wanted.
    """

    def __init__(
        self,
        duration: float,
        segments: Iterator[TranscriptSegment],
        language: Callable[[], str],
        ended: Event,
    ) -> None:
        self.duration = duration
        self._coming, self._come = segments, list[TranscriptSegment]()
        self._language, self._ended = language, ended

    def __next__(self) -> TranscriptSegment:
        """The next segment; it waits for it.

        Raises:
            ClrtError: What went wrong.
        """
        if self._ended.is_set():
            raise StopIteration
        segment = next(self._coming)
        self._come.append(segment)
        return segment

    def __enter__(self) -> TranscriptStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it where it is; `result` has what came."""
        self.cancel()
        self._coming = iter(())

    def cancel(self) -> None:
        """Ends it soon; any thread, and a signal's handler, may ask for it."""
        self._ended.set()

    @property
    def is_cancelled(self) -> bool:
        """Whether it was ended."""
        return self._ended.is_set()

    @property
    def language(self) -> str:
        """The code of the language that is spoken; "" where it is not known, or not yet."""
        return self._language()

    @property
    def result(self) -> Transcript:
        """What has come so far."""
        return Transcript.of(self._come, self.language, self.duration)

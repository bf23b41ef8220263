"""Streams of transcript segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event

from clrt.audio.transcripts import Transcript, TranscriptSegment


class TranscriptStream(Iterator[TranscriptSegment]):
    """Iterator of transcript segments, for one thread at a time.

    Cancelling or closing the stream ends transcription. A thread that waits for a segment then
    returns after the current token.

    Attributes:
        duration: Duration of the audio, in seconds.

    Args:
        segments: Iterator that transcribes, and that ends soon after `ended` is set.
        language: Returns the language code, or "" while it is unknown.
        ended: Event that `cancel` and `close` set to end transcription.
    """

    def __init__(
        self,
        duration: float,
        segments: Iterator[TranscriptSegment],
        language: Callable[[], str],
        ended: Event,
    ) -> None:
        self.duration = duration
        self._source, self._segments = segments, list[TranscriptSegment]()
        self._language, self._ended = language, ended

    def __next__(self) -> TranscriptSegment:
        """Returns the next segment, waiting for it.

        Raises:
            ClrtError: Transcription failed.
        """
        if self._ended.is_set():
            raise StopIteration
        segment = next(self._source)
        self._segments.append(segment)
        return segment

    def __enter__(self) -> TranscriptStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends transcription; `result` has the segments so far."""
        self.cancel()
        self._source = iter(())

    def cancel(self) -> None:
        """Ends transcription soon; may be called from any thread and from signal handlers."""
        self._ended.set()

    @property
    def is_cancelled(self) -> bool:
        """Whether the stream was cancelled or closed."""
        return self._ended.is_set()

    @property
    def language(self) -> str:
        """Code of the spoken language; "" until it is detected, and for CTC models."""
        return self._language()

    @property
    def result(self) -> Transcript:
        """Transcript of the segments so far."""
        return Transcript.of(self._segments, self.language, self.duration)

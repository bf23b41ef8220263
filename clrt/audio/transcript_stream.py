"""Streams of transcript segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event

from clrt.audio.transcripts import Transcript, TranscriptSegment


class TranscriptStream(Iterator[TranscriptSegment]):
    """Iterator of transcript segments, for one thread at a time.

    Cancelling or closing it ends transcription; a thread waiting for a segment returns after the
    current token.

    Attributes:
        duration: Duration of the audio, in seconds.

    Args:
        segments: Iterator that transcribes; it ends soon after `ended` is set.
        language: Function that returns the language code; "" while unknown.
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

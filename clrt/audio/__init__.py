"""Audio features, voice activity detection, and speech to text.

features = clrt.audio.Features.from_config("whisper-tiny")
inputs = features("speech.wav", device_outputs=True)
"""

import warnings

from clrt.audio.chunks import Chunks
from clrt.audio.ctc import CtcVocabulary
from clrt.audio.features import Features
from clrt.audio.resample import resample
from clrt.audio.speech_options import TemperatureFallback
from clrt.audio.streams import read_audio
from clrt.audio.transcriber import Transcriber
from clrt.audio.transcript_stream import TranscriptStream
from clrt.audio.transcripts import Transcript, TranscriptSegment
from clrt.audio.voice_activity import Segment, SpeechThresholds, VoiceActivity

__all__ = [
    "Chunks",
    "CtcVocabulary",
    "Features",
    "Segment",
    "SpeechThresholds",
    "TemperatureFallback",
    "Transcriber",
    "Transcript",
    "TranscriptSegment",
    "TranscriptStream",
    "VoiceActivity",
    "read_audio",
    "resample",
]


def __getattr__(name: str) -> object:
    if name != "Fallback":
        raise AttributeError(f"module 'clrt.audio' has no attribute '{name}'")
    message = "clrt.audio.Fallback is now called TemperatureFallback"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return TemperatureFallback

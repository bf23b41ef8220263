"""Feature extractors: options, padding of audio, and the graph that computes the features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from clrt.audio.graphs import (
    BLOCKS,
    VALID,
    MelSpectrum,
    decades_graph,
    fbank_graph,
    log_mel_graph,
)
from clrt.audio.mel import emphasis, fourier, hann, kaldi_filters, slaney_filters
from clrt.audio.wav import FloatArray
from clrt.ir.graph import Graph
from clrt.util.fast_dataclass import dataclass

MASK = "attention_mask"
Feeds: TypeAlias = "dict[str, np.ndarray[Any, Any]]"

# Frame counts of short audio are padded to a multiple of this, to limit the number of shapes.
FRAME_STEP = 100
# Added to the variance before its square root, as in transformers' Wav2Vec2FeatureExtractor.
_VARIANCE = 1e-7


@dataclass(frozen=True)
class LogMel:
    """Feature extractor of Whisper, with the fields of transformers' WhisperFeatureExtractor.

    Attributes:
        sampling_rate: Sampling rate of the audio in Hz.
        feature_size: Number of mel bands.
        n_fft: Samples per frame.
        hop_length: Samples between the starts of consecutive frames.
        chunk_length: Maximum duration of an input in seconds.
        return_attention_mask: Whether the model has an input `attention_mask`.
    """

    output: ClassVar[str] = "input_features"

    sampling_rate: int = 16_000
    feature_size: int = 80
    n_fft: int = 400
    hop_length: int = 160
    chunk_length: int = 30
    return_attention_mask: bool = False

    @property
    def most_samples(self) -> int:
        """Maximum number of samples; longer audio is cut."""
        return self.chunk_length * self.sampling_rate

    @property
    def frames(self) -> int:
        """Number of frames of the features."""
        return self.most_samples // self.hop_length

    def graph(self) -> Graph:
        """Returns the graph that computes the features from the arrays that `feeds` returns."""
        return log_mel_graph(self._spectrum(), self.frames, self.output)

    def decades_graph(self) -> Graph:
        """Returns the graph that computes log10 of mel bands, for any number of frames.

        Unlike `graph`, it neither clamps the result by its maximum nor scales it.
        """
        return decades_graph(self._spectrum(), self.output)

    def _spectrum(self) -> MelSpectrum:
        window = hann(self.n_fft, periodic=True)[:, None]
        real, imaginary = fourier(self.n_fft, self.n_fft)
        filters = slaney_filters(self.feature_size, self.n_fft, self.sampling_rate, 8000.0)
        return MelSpectrum(window * real, window * imaginary, filters, self.hop_length)

    def feeds(self, sounds: Sequence[FloatArray]) -> Feeds:
        """Returns the graph's inputs: audio padded with zeros, and mirrored at both ends.

        Args:
            sounds: Audio inputs, float32 `[samples]`, at most `most_samples` long.

        Returns:
            Blocks of samples, float32 `[sounds, blocks, hop_length]`, by the input's name.
        """
        before, hop, end = self.n_fft // 2, self.hop_length, self.most_samples
        longest = max(map(len, sounds))
        count = -(-(longest + before) // hop)  # later frames contain zeros only
        count = min(-(-count // FRAME_STEP) * FRAME_STEP, self.frames)
        blocks = count + -(-self.n_fft // hop) - 1
        padded = np.zeros((len(sounds), blocks * hop), np.float32)
        behind = padded.shape[1] - before - end
        for row, sound in zip(padded, sounds, strict=True):
            part = sound[: len(row) - before]
            row[before : before + len(part)] = part
            start = _part(sound, 1, before + 1)
            row[:before] = start[::-1]
            if behind > 0:
                row[before + end :] = _part(sound, end - 1 - behind, end - 1)[::-1]
        return {BLOCKS: padded.reshape(len(sounds), blocks, hop)}

    def mask(self, sounds: Sequence[FloatArray]) -> Feeds:
        """Returns the input `attention_mask`: 1 for frames that start within the audio.

        Args:
            sounds: Audio inputs, float32 `[samples]`.

        Returns:
            int64 `[sounds, frames]`, by name; {} unless `return_attention_mask`.
        """
        if not self.return_attention_mask:
            return {}
        starts = np.arange(self.frames) * self.hop_length
        return {MASK: np.array([starts < len(s) for s in sounds], np.int64)}


@dataclass(frozen=True)
class Waveform:
    """Feature extractor of wav2vec2, with the fields of transformers' Wav2Vec2FeatureExtractor.

    Attributes:
        sampling_rate: Sampling rate of the audio in Hz.
        padding_value: Sample that pads shorter inputs of a batch.
        do_normalize: Whether inputs are normalized to mean 0 and variance 1.
        return_attention_mask: Whether the model has an input `attention_mask`.
    """

    output: ClassVar[str] = "input_values"
    most_samples: ClassVar[None] = None

    sampling_rate: int = 16_000
    padding_value: float = 0.0
    do_normalize: bool = True
    return_attention_mask: bool = False

    def graph(self) -> None:
        """Returns None: the host computes the features, faster than copying samples to a device."""

    def feeds(self, sounds: Sequence[FloatArray]) -> Feeds:
        """Returns the samples, padded to the longest input; normalized if `do_normalize`.

        Each input is normalized to mean 0 and variance 1. As in transformers, the padding counts in
        mean and variance unless `return_attention_mask`.

        Args:
            sounds: Audio inputs, float32 `[samples]`.

        Returns:
            float32 `[sounds, samples]`, by its name "input_values".
        """
        padded = np.full((len(sounds), max(map(len, sounds))), self.padding_value, np.float32)
        for row, sound in zip(padded, sounds, strict=True):
            row[: len(sound)] = sound
            if self.do_normalize:
                _normalize(row[: len(sound)] if self.return_attention_mask else row)
        return {self.output: padded}

    def mask(self, sounds: Sequence[FloatArray]) -> Feeds:
        """Returns the input `attention_mask`: 1 for samples, 0 for padding.

        Args:
            sounds: Audio inputs, float32 `[samples]`.

        Returns:
            int64 `[sounds, samples]`, by name; {} unless `return_attention_mask`.
        """
        if not self.return_attention_mask:
            return {}
        places = np.arange(max(map(len, sounds)))
        return {MASK: np.array([places < len(s) for s in sounds], np.int64)}


@dataclass(frozen=True)
class FilterBank:
    """Feature extractor of the Audio Spectrogram Transformer: Kaldi's filter bank features.

    It has the fields of transformers' ASTFeatureExtractor.

    Attributes:
        sampling_rate: Sampling rate of the audio in Hz.
        num_mel_bins: Number of mel bands.
        max_length: Number of frames; longer audio is cut, shorter audio is padded.
        do_normalize: Whether `mean` is subtracted and the result divided by twice `std`.
        mean: Mean of the features over the training data.
        std: Standard deviation of the features over the training data.
    """

    output: ClassVar[str] = "input_values"

    sampling_rate: int = 16_000
    num_mel_bins: int = 128
    max_length: int = 1024
    do_normalize: bool = True
    mean: float = -4.2677393
    std: float = 4.5689974

    _length: ClassVar[int] = 400
    _hop: ClassVar[int] = 160
    _n_fft: ClassVar[int] = 512

    @property
    def most_samples(self) -> int:
        """Maximum number of samples; longer audio is cut."""
        return (self.max_length - 1) * self._hop + self._length

    def graph(self) -> Graph:
        """Returns the graph that computes the features from the arrays that `feeds` returns."""
        mean, scale = (self.mean, 0.5 / self.std) if self.do_normalize else (0.0, 1.0)
        return fbank_graph(self._spectrum(), self.max_length, mean, scale, self.output)

    def _spectrum(self) -> MelSpectrum:
        window = hann(self._length, periodic=False)
        prepared = emphasis(self._length, 0.97) * window
        real, imaginary = fourier(self._length, self._n_fft)
        filters = kaldi_filters(self.num_mel_bins, self._n_fft, self.sampling_rate, 20.0)
        return MelSpectrum(prepared @ real, prepared @ imaginary, filters, self._hop)

    def feeds(self, sounds: Sequence[FloatArray]) -> Feeds:
        """Returns the graph's inputs: audio padded with zeros, and a mask of frames.

        Args:
            sounds: Audio inputs, float32 `[samples]`.

        Returns:
            Arrays by input name. The mask is true for frames that end within the audio.
        """
        counts = [max(0, 1 + (len(s) - self._length) // self._hop) for s in sounds]
        max_frames = min(-(-max(*counts, 1) // FRAME_STEP) * FRAME_STEP, self.max_length)
        blocks = max_frames + -(-self._length // self._hop) - 1
        padded = np.zeros((len(sounds), blocks * self._hop), np.float32)
        for row, sound in zip(padded, sounds, strict=True):
            part = sound[: len(row)]
            row[: len(part)] = part
        valid = np.arange(max_frames) < np.array(counts)[:, None]
        return {BLOCKS: padded.reshape(len(sounds), blocks, self._hop), VALID: valid[..., None]}

    def mask(self, sounds: Sequence[FloatArray]) -> Feeds:
        """Returns {}: AST has no mask, because all inputs get `max_length` frames."""
        return {}


Preset: TypeAlias = LogMel | Waveform | FilterBank


def _normalize(samples: FloatArray) -> None:
    """Normalizes samples to mean 0 and variance 1 in place. Sums are float64."""
    samples -= np.float32(samples.mean(dtype=np.float64))
    energy = float(np.einsum("i,i->", samples, samples, dtype=np.float64))
    samples *= np.float32(1 / np.sqrt(energy / len(samples) + _VARIANCE))


def _part(sound: FloatArray, start: int, end: int) -> FloatArray:
    """Returns samples `start` to `end` of `sound`, padded with zeros after the end of the audio."""
    part = np.zeros(end - start, np.float32)
    available = sound[start:end]
    part[: len(available)] = available
    return part

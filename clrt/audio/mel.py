"""Mel scales, mel filter banks, and matrices that transform frames of samples into spectra."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Scale = Literal["slaney", "kaldi"]

# Slaney's scale is linear up to 1 kHz (3 mel per 200 Hz), then logarithmic (factor 6.4 per 27 mel).
_LINEAR_HERTZ, _LINEAR_MEL = 1000.0, 15.0
_STEP = np.log(6.4) / 27


def hertz_to_mel(hertz: Doubles, scale: Scale = "slaney") -> Doubles:
    """Converts frequencies in Hz to the mel scale of Slaney (as in librosa) or Kaldi.

    Args:
        hertz: Frequencies in Hz.
        scale: "slaney" or "kaldi".

    Source: Slaney, Auditory Toolbox (1998), as librosa has it; Kaldi's 1127 ln(1 + f / 700).
    """
    if scale == "kaldi":
        return np.asarray(1127.0 * np.log1p(hertz / 700.0))
    above = np.log(np.maximum(hertz, _LINEAR_HERTZ) / _LINEAR_HERTZ) / _STEP
    return np.where(hertz < _LINEAR_HERTZ, 3 * hertz / 200, _LINEAR_MEL + above)


def mel_to_hertz(mel: Doubles) -> Doubles:
    """Converts Slaney's mel scale to frequencies in Hz."""
    above = _LINEAR_HERTZ * np.exp(_STEP * (np.maximum(mel, _LINEAR_MEL) - _LINEAR_MEL))
    return np.where(mel < _LINEAR_MEL, 200 * mel / 3, above)


def slaney_filters(mels: int, n_fft: int, rate: int, highest: float) -> Doubles:
    """Returns the weights of triangular mel filters of area 1, `[n_fft // 2 + 1, mels]`.

    Args:
        mels: Number of filters.
        n_fft: Length of the Fourier transform, in samples.
        rate: Sampling rate, in Hz.
        highest: End of the last filter, in Hz; the first filter starts at 0 Hz.

    Source: librosa.filters.mel, and transformers' mel_filter_bank with norm="slaney".
    """
    low, high = hertz_to_mel(np.array([0.0, highest]))
    edges = mel_to_hertz(np.linspace(low, high, mels + 2))
    bins = np.linspace(0, rate // 2, n_fft // 2 + 1)
    return _triangles(bins, edges) * (2 / (edges[2:] - edges[:-2]))


def kaldi_filters(mels: int, n_fft: int, rate: int, lowest: float) -> Doubles:
    """Returns the weights of filters that are triangles in mel, `[n_fft // 2 + 1, mels]`.

    Args:
        mels: Number of filters.
        n_fft: Length of the Fourier transform, in samples.
        rate: Sampling rate, in Hz; the last filter ends at half of it.
        lowest: Start of the first filter, in Hz.

    Source: Kaldi's MelBanks; transformers' mel_filter_bank with triangularize_in_mel_space.
    """
    low, high = hertz_to_mel(np.array([lowest, float(rate // 2)]), "kaldi")
    bins = hertz_to_mel(np.linspace(0, rate / n_fft * (n_fft // 2), n_fft // 2 + 1), "kaldi")
    return _triangles(bins, np.linspace(low, high, mels + 2))


def _triangles(bins: Doubles, edges: Doubles) -> Doubles:
    """Returns triangular filters, `[bins, filters]`, with peaks of 1.

    Args:
        bins: Frequency of each bin, in any unit.
        edges: Ascending frequencies in the same unit; filter k rises from edge k to edge k + 1,
            and falls to edge k + 2.
    """
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising = (bins[:, None] - left) / (centre - left)
    falling = (right - bins[:, None]) / (right - centre)
    return np.maximum(0, np.minimum(rising, falling))


def hann(length: int, periodic: bool) -> Doubles:
    """Returns the Hann window, `[length]`.

    Args:
        length: Number of samples.
        periodic: Whether the window's period is `length`; if not, `length - 1`, with 0 at both
            ends.
    """
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / (length - (not periodic)))


def fourier(length: int, n_fft: int) -> tuple[Doubles, Doubles]:
    """Returns the real and the imaginary part of a DFT matrix, each `[length, n_fft // 2 + 1]`.

    Args:
        length: Number of input samples; the transform pads them with zeros to `n_fft`.
        n_fft: Length of the transform.
    """
    turns = np.outer(np.arange(length), np.arange(n_fft // 2 + 1)) % n_fft
    angle = 2 * np.pi * turns / n_fft
    return np.cos(angle), -np.sin(angle)


def emphasis(length: int, factor: float) -> Doubles:
    """Returns the matrix that subtracts a frame's mean and applies pre-emphasis.

    Pre-emphasis subtracts `factor` times the preceding sample; the first sample counts as its own
    predecessor.

    Args:
        length: Number of samples per frame.
        factor: Factor of pre-emphasis.

    Returns:
        `[length, length]`; a frame is a row vector, to be multiplied by this matrix.

    Source: Kaldi's ProcessWindow.
    """
    centred = np.eye(length) - 1 / length
    step = np.eye(length) - factor * np.eye(length, k=1)
    step[0, 0] -= factor
    matrix: Doubles = centred @ step
    return matrix

"""Resampling against the windowed-sinc sum in float64, and its frequency response."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest

from clrt.audio import resample
from clrt.audio.resample import Resampler
from clrt.errors import InputError
from tests.audio.sounds import Doubles, signal

RATES = [(48_000, 16_000), (44_100, 16_000), (8_000, 16_000), (16_000, 44_100), (16_001, 16_000)]


def reference(samples: Doubles, rate: int, to: int) -> Doubles:
    """A sinc that falls to half at 0.94 of the lower Nyquist frequency, in a Kaiser window of 48
    zeros at each side and 90 dB."""
    cutoff = 0.94 * min(1.0, to / rate)
    half, beta = ceil(48 / cutoff), 0.1102 * (90 - 8.7)
    made = []
    for n in range(ceil(Fraction(len(samples) * to, rate))):
        at = Fraction(n * rate, to)
        near = np.arange(max(floor(at) - half + 1, 0), min(floor(at) + half + 1, len(samples)))
        distance = near - float(at)
        window = np.i0(beta * np.sqrt(1 - (distance / half) ** 2)) / np.i0(beta)
        weights = cutoff * np.sinc(cutoff * distance) * window
        made.append(float((samples[near].astype(np.float64) * weights).sum()))
    return np.array(made)


@pytest.mark.parametrize("samples", [1, 2, 399, 2000])
@pytest.mark.parametrize(("rate", "to"), RATES)
def test_resample_matches_windowed_sinc_in_float64(rate: int, to: int, samples: int) -> None:
    given = signal("noise", samples)
    expected = reference(given.astype(np.float64), rate, to)
    found = resample(given, rate, to)
    assert found.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=3e-6)


@pytest.mark.parametrize(("rate", "to"), [*RATES, (96_000, 8_000)])
def test_streaming_resampler_matches_resample_for_any_block_size(rate: int, to: int) -> None:
    given = signal("noise", 20_000)
    rng = np.random.default_rng(1)
    resampler, parts, start = Resampler(rate, to), [], 0
    while start < len(given):
        size = int(rng.choice([0, 1, 7, 500, 5000]))
        parts.append(resampler.push(given[start : start + size]))
        start += size
    parts.append(resampler.finish())
    np.testing.assert_allclose(np.concatenate(parts), resample(given, rate, to), atol=3e-6)


def _level(rate: int, to: int, hertz: float) -> float:
    """How loud a tone is afterwards, in dB."""
    tone = np.sin(2 * np.pi * hertz * np.arange(rate) / rate + 0.3).astype(np.float32)
    found = resample(tone, rate, to)
    middle = found[len(found) // 4 : -len(found) // 4].astype(np.float64)
    return float(10 * np.log10(2 * np.mean(middle**2) + 1e-30))


@pytest.mark.parametrize(("rate", "to"), [(48_000, 16_000), (44_100, 16_000), (8_000, 16_000)])
def test_resample_keeps_passband_and_rejects_aliases(rate: int, to: int) -> None:
    lower = min(rate, to)
    for share in (0.01, 0.2, 0.4, 0.44):
        assert abs(_level(rate, to, share * lower)) < 0.01, share
    for share in (0.501, 0.53, 0.6, 1.0) if rate > to else ():
        assert _level(rate, to, share * lower) < -90, share


def test_resample_to_same_rate_is_identity() -> None:
    given = signal("noise", 100)
    np.testing.assert_array_equal(resample(given, 16_000, 16_000), given)
    assert resample(given[:0], 8_000, 16_000).shape == (0,)


@pytest.mark.parametrize("rate", [0, 10**9, 44_100.0, True, "44100", None])
def test_invalid_sampling_rate_is_refused(rate: object) -> None:
    with pytest.raises(InputError, match="sampling_rate is"):
        resample(signal("noise", 10), rate, 16_000)  # type: ignore[arg-type]

"""Sampling rate conversion by a polyphase filter: a sinc with a Kaiser window.

Let r be the lower of the two rates. Frequencies below 0.44 r are kept to 0.01 dB. Frequencies above
r / 2, which the result cannot represent, are attenuated by 90 dB. The transition band is between
0.44 r and r / 2. The result has ceil(samples * to / from) samples, and no delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import ceil, gcd

import numpy as np
from numpy.lib.stride_tricks import as_strided

from clrt.audio.wav import MAX_RATE_HZ, MIN_RATE_HZ, FloatArray
from clrt.errors import InputError

# The low-pass filter: zero crossings of the sinc per side; its cutoff (-6 dB) as a fraction of the
# lower Nyquist frequency; and the Kaiser window's beta for a stop band of -90 dB (Oppenheim and
# Schafer, Discrete-Time Signal Processing).
_ZEROS = 48
_CUTOFF = 0.94
_BETA = 0.1102 * (90 - 8.7)
# Maximum number of outputs per matrix product, and of input rows copied at a time. Both bound
# memory.
_COLUMNS, _ROWS = 128, 1 << 12


def check_rate(rate: object) -> int:
    """Returns a sampling rate in Hz as an int.

    Raises:
        InputError: The rate is not an integer, or out of range.
    """
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer):
        raise InputError(
            f"sampling_rate is {rate!r}; expected a whole number of samples per second."
        )
    if not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
        raise InputError(
            f"sampling_rate is {rate}; expected {MIN_RATE_HZ:,} to {MAX_RATE_HZ:,} samples a "
            "second."
        )
    return int(rate)


def resample(samples: FloatArray, rate: int, to: int) -> FloatArray:
    """Converts the sampling rate of a signal; returns float32 `[ceil(samples * to / rate)]`.

    Args:
        samples: float32 `[samples]`.
        rate: Sampling rate of the signal, in Hz.
        to: Sampling rate of the result, in Hz.

    Raises:
        InputError: A rate is out of range.

    Numerics: filters in float64, sums in float32.
    """
    blocks = list(resampled([samples], check_rate(rate), check_rate(to)))
    return np.concatenate([np.empty(0, np.float32), *blocks])


def resampled(blocks: Iterable[FloatArray], rate: int, to: int) -> Iterator[FloatArray]:
    """Yields resampled blocks of a signal as soon as they can be computed.

    Args:
        blocks: Consecutive blocks of the signal, float32 `[samples]`.
        rate: Sampling rate of the signal, in Hz.
        to: Sampling rate of the result, in Hz.
    """
    if rate == to:
        yield from blocks
        return
    resampler = Resampler(rate, to)
    for block in blocks:
        yield resampler.push(block)
    yield resampler.finish()


class Resampler:
    """Converts the sampling rate of a signal that arrives in blocks.

    Let step / phases be the input rate over the output rate, in lowest terms. Output sample n is at
    input position n * step / phases; each of the `phases` fractional positions has its own filter.
    Outputs are computed in groups, whose size is a multiple of `phases`: a group is the product of
    a row of input samples and a matrix with the group's filters as columns.

    Args:
        rate: Sampling rate of the signal, in Hz.
        to: Sampling rate of the result, in Hz.
    """

    def __init__(self, rate: int, to: int) -> None:
        shared = gcd(rate, to)
        self._phases, self._step = to // shared, rate // shared
        self._half_taps = _half_taps(self._phases, self._step)
        self._group = self._phases * max(1, _COLUMNS // self._phases)
        self._buffer = np.zeros(self._half_taps - 1, np.float32)
        self._buffer_start = 1 - self._half_taps  # index of the first input in `_buffer`
        self._num_inputs = 0
        self._num_outputs = 0

    def push(self, block: FloatArray) -> FloatArray:
        """Adds a block of input samples and returns the output samples that it completes.

        Args:
            block: float32 `[samples]`.
        """
        self._buffer = np.concatenate([self._buffer, np.asarray(block, np.float32)])
        self._num_inputs += len(block)
        # Index of the last output whose filter ends within the available inputs.
        last = self._num_inputs - 1 - self._half_taps
        count = (last * self._phases + self._phases - 1) // self._step + 1
        return self._outputs(max(count - count % self._group, self._num_outputs))

    def finish(self) -> FloatArray:
        """Returns the remaining output samples; zeros are assumed after the last input sample."""
        remaining = -(-self._num_inputs * self._phases // self._step) - self._num_outputs
        end = self._num_outputs + -(-remaining // self._group) * self._group
        room = end * self._step // self._phases + self._half_taps - self._num_inputs
        self._buffer = np.concatenate([self._buffer, np.zeros(max(room, 0), np.float32)])
        return self._outputs(end)[:remaining]

    def _outputs(self, end: int) -> FloatArray:
        """Returns the output samples not yet computed before index `end`.

        Args:
            end: Index after the last sample; a multiple of the group size.
        """
        group, hop = self._group, self._group // self._phases * self._step
        result = np.empty(((end - self._num_outputs) // group, group), np.float32)
        start = (
            self._num_outputs // self._phases * self._step
            - self._half_taps
            + 1
            - self._buffer_start
        )
        for column in range(0, group if len(result) else 0, _COLUMNS):
            offset, matrix = _filter_matrix(self._phases, self._step, column, group)
            for row in range(0, len(result), _ROWS):
                some = min(_ROWS, len(result) - row)
                at = self._buffer[start + offset + row * hop :]
                (size,) = at.strides
                inputs = as_strided(at, (some, len(matrix)), (hop * size, size), writeable=False)
                place = slice(row, row + some), slice(column, column + matrix.shape[1])
                result[place] = np.ascontiguousarray(inputs) @ matrix
        self._num_outputs = end
        unused = max(end // self._phases * self._step - self._half_taps + 1 - self._buffer_start, 0)
        self._buffer, self._buffer_start = self._buffer[unused:], self._buffer_start + unused
        return result.reshape(-1)


def _half_taps(phases: int, step: int) -> int:
    """Returns half the number of taps of a filter.

    Args:
        phases: Output rate, divided by the greatest common divisor of both rates.
        step: Input rate, divided by the greatest common divisor of both rates.
    """
    return ceil(_ZEROS / (_CUTOFF * min(1.0, phases / step)))


@lru_cache(16)
def _filter_matrix(phases: int, step: int, first: int, group: int) -> tuple[int, FloatArray]:
    """Returns the filters of up to 128 consecutive output samples as a matrix.

    Args:
        phases: Output rate, divided by the greatest common divisor of both rates.
        step: Input rate, divided by the greatest common divisor of both rates.
        first: Index of the first output sample in its group.
        group: Number of output samples of a group.

    Returns:
        (first input sample, relative to the inputs of the group; matrix, float32
        `[inputs, outputs]`).
    """
    outputs = np.arange(first, min(first + _COLUMNS, group))
    half, scale = _half_taps(phases, step), _CUTOFF * min(1.0, phases / step)
    whole, phase = np.divmod(outputs * step, phases)
    taps = np.arange(1 - half, half + 1)[:, None]
    distance = taps - phase / phases
    inside = np.clip(1 - (distance / half) ** 2, 0, None)
    window = np.i0(_BETA * np.sqrt(inside)) / np.i0(_BETA)
    offset = int(whole[0])
    matrix = np.zeros((int(whole[-1]) - offset + 2 * half, len(outputs)), np.float32)
    rows = whole - offset + (taps + half - 1)
    matrix[rows, np.arange(len(outputs))] = scale * np.sinc(scale * distance) * window
    return offset, matrix

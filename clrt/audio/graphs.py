"""Graphs of standard ONNX ops that compute audio features.

The spectrum is a product of frames and a DFT matrix, which on CPUs takes a twentieth of the time of
the direct kernel of STFT. A symmetric window halves the operations of the product (see
docs/guides/audio.md for the measurement).
"""

from __future__ import annotations

import numpy as np

from clrt.audio.mel import Doubles
from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ops.op_builder import OpBuilder, floats, ints
from clrt.util.fast_dataclass import dataclass

BLOCKS = "blocks"
VALID = "valid"

# Lower bound of mel energies before the logarithm.
_MIN_ENERGY = 1e-10
_TO_THE_END = np.iinfo(np.int64).max


@dataclass(frozen=True)
class MelSpectrum:
    """Constants of the transform from frames to mel bands.

    Attributes:
        real: Matrix from a frame to the real part of its spectrum, with the window applied,
            `[length, bins]`.
        imaginary: Matrix from a frame to the imaginary part of its spectrum, with the window
            applied, `[length, bins]`.
        filters: Weights of the bins in each mel band, `[bins, mels]`.
        hop: Number of samples between the starts of consecutive frames.
    """

    real: Doubles
    imaginary: Doubles
    filters: Doubles
    hop: int

    @property
    def blocks(self) -> int:
        """Number of blocks of `hop` samples that a frame overlaps."""
        return -(-len(self.real) // self.hop)


def log_mel_graph(spectrum: MelSpectrum, frames: int, name: str) -> Graph:
    """Builds the graph of Whisper's features: log10 of mel bands, clamped and scaled.

    Values are clamped to at least the maximum minus 8.

    Args:
        spectrum: Constants of the transform.
        frames: Number of frames of the result; missing input frames count as silence.
        name: Name of the output.

    Returns:
        Graph with input `blocks` (samples, float32 `[batch, blocks, hop]`; frame k starts at block
        k), and output float32 `[batch, mels, frames]`.

    Source: transformers' WhisperFeatureExtractor.
    """
    build = OpBuilder()
    blocks = symbol("blocks")
    x = _decades(build, spectrum)
    missing = frames - (blocks - (spectrum.blocks - 1))
    x = build("Pad", x, build.dims((0, 0, 0, 0, missing, 0)), floats(np.log10(_MIN_ENERGY)))
    largest = build("ReduceMax", x, ints(1, 2), keepdims=1)
    x = build("Max", x, build("Sub", largest, floats(8.0)))
    x = build("Mul", build("Add", x, floats(4.0)), floats(0.25))
    x = build("Transpose", x, perm=(0, 2, 1))
    return build.graph("log_mel", build.inputs, [x], [name])


def decades_graph(spectrum: MelSpectrum, name: str) -> Graph:
    """Builds the graph of log10 of mel bands, neither clamped nor scaled.

    Args:
        spectrum: Constants of the transform.
        name: Name of the output.

    Returns:
        Graph with input `blocks` (samples, float32 `[batch, blocks, hop]`; frame k starts at block
        k), and output float32 `[batch, mels, frames]`.
    """
    build = OpBuilder()
    x = build("Transpose", _decades(build, spectrum), perm=(0, 2, 1))
    return build.graph("decades", build.inputs, [x], [name])


def _decades(build: OpBuilder, spectrum: MelSpectrum) -> Value:
    """Adds an input `blocks` of samples to a graph, and ops for log10 of its mel energies.

    Args:
        build: Builder of the graph.
        spectrum: Constants of the transform.

    Returns:
        float32 `[batch, frames, mels]`.
    """
    blocks = build.feed(BLOCKS, DType.FLOAT32, "batch", "blocks", spectrum.hop)
    x = build("Log", build("Max", _mel(build, blocks, spectrum), floats(_MIN_ENERGY)))
    return build("Mul", x, floats(1 / np.log(10)))


def fbank_graph(spectrum: MelSpectrum, frames: int, mean: float, scale: float, name: str) -> Graph:
    """Builds the graph of Kaldi's filter bank energies, for the Audio Spectrogram Transformer.

    Args:
        spectrum: Constants of the transform.
        frames: Number of frames of the result; missing input frames are 0 before `mean` is
            subtracted.
        mean: Number to subtract from the logarithms of the energies.
        scale: Factor by which the difference is multiplied.
        name: Name of the output.

    Returns:
        Graph with inputs `blocks` (samples, float32 `[batch, blocks, hop]`; frame k starts at block
        k) and `valid` (bool `[batch, input frames, 1]`, false for frames that extend beyond the
        audio), and output float32 `[batch, frames, mels]`.

    Source: transformers' ASTFeatureExtractor.
    """
    build = OpBuilder()
    samples = build.feed(BLOCKS, DType.FLOAT32, "batch", "blocks", spectrum.hop)
    count = symbol("blocks") - (spectrum.blocks - 1)
    valid = build.feed(VALID, DType.BOOL, "batch", count, 1)
    x = _mel(build, samples, spectrum)
    x = build("Log", build("Max", x, floats(2.0**-23)))
    x = build("Where", valid, x, floats(0.0))
    x = build("Pad", x, build.dims((0, 0, 0, 0, frames - count, 0)), floats(0.0))
    x = build("Mul", build("Sub", x, floats(mean)), floats(scale))
    return build.graph("fbank", build.inputs, [x], [name])


def _mel(build: OpBuilder, blocks: Value, spectrum: MelSpectrum) -> Value:
    """Adds ops for the mel energies of all frames to a graph.

    Args:
        build: Builder of the graph.
        blocks: Samples, `[batch, blocks, hop]`; frame k starts at block k.
        spectrum: Constants of the transform.

    Returns:
        float32 `[batch, frames, mels]`.
    """
    length, last = len(spectrum.real), spectrum.blocks - 1
    parts = []
    for k in range(spectrum.blocks):
        end = _TO_THE_END if k == last else k - last
        part = build.slice(blocks, k, end, 1)
        rest = length - k * spectrum.hop
        if rest < spectrum.hop:
            part = build.slice(part, 0, rest, 2)
        parts.append(part)
    frames = parts[0] if len(parts) == 1 else build("Concat", *parts, axis=2)
    used = np.flatnonzero(spectrum.filters.any(axis=1))
    real, imaginary = spectrum.real[:, used], spectrum.imaginary[:, used]
    even, odd = frames, frames
    if _is_symmetric(spectrum):
        # x[k] and x[length - k] have the same cosine, and sines of opposite sign.
        half = length // 2
        head = build.slice(frames, 1, half, 2)
        tail = build.slice(frames, length - 1, half, 2, -1)
        middle = build.slice(frames, half, half + 1, 2)
        even = build("Concat", build("Add", head, tail), middle, axis=2)
        odd = build("Sub", head, tail)
        real, imaginary = real[1 : half + 1], imaginary[1:half]
    energy = []
    for side, matrix in ((even, real), (odd, imaginary)):
        product = build("MatMul", side, matrix.astype(np.float32))
        energy.append(build("Mul", product, product))
    filters = spectrum.filters[used].astype(np.float32)
    return build("MatMul", build("Add", *energy), filters)


def _is_symmetric(spectrum: MelSpectrum) -> bool:
    """Returns whether the transform ignores sample 0 and is symmetric in the other samples.

    Symmetric means that reversal of samples 1 and up keeps `real` and negates `imaginary`.
    """
    if len(spectrum.real) % 2 or len(spectrum.real) < 4:
        return False
    real, imaginary = spectrum.real[1:], spectrum.imaginary[1:]
    ends = np.abs(np.concatenate([spectrum.real[0], spectrum.imaginary[0]]))
    wrong = np.abs(real - real[::-1]).max(), np.abs(imaginary + imaginary[::-1]).max(), ends.max()
    return bool(max(wrong) < 1e-9)

"""The first layers of a speech encoder: convolutions over frames, and position embeddings."""

from __future__ import annotations

from clrt.ir.dims import Dim
from clrt.ir.graph import Value
from clrt.models.decoders.layers import DecoderBuilder
from clrt.ops.conv.conv import Conv
from clrt.ops.movement.transpose import Transpose
from clrt.ops.pointwise.table import Add, Gelu

# Window of the convolutions, in frames.
_KERNEL = 3


def embedded_frames(build: DecoderBuilder, frames: Value, batch: Dim, places: Dim) -> Value:
    """Applies the two convolutions of a speech encoder over time, and adds position embeddings.

    The second convolution merges `stride` frames (a field of the encoder's configuration) into one
    position.

    Args:
        build: Builder of the encoder.
        frames: Features of audio frames, float32 `[batch, stride * places, features]`.
        batch: Number of audio segments.
        places: Number of positions per audio segment.

    Returns:
        float32 `[batch * places, hidden]`.

    Raises:
        ModelError: A tensor is missing, or has another shape.

    Source: Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision (2022).
    """
    encoder, path = build.decoder, "enc.position_embd"
    size = encoder.hidden
    x = build("enc.conv1", Transpose((0, 2, 1)), frames)
    x = _convolved(build, x, "enc.conv1", encoder.features, 1)
    x = _convolved(build, x, "enc.conv2", size, encoder.stride)
    x = build("enc.conv2", Transpose((0, 2, 1)), x)
    x = build.at("enc.conv2").reshaped(x, batch, places, size)
    table = build.constant(build.load_float32(f"{path}.weight", encoder.places, size))
    x = build(path, Add(), x, build.at(path).slice(table, 0, places, axis=0))
    return build.at(path).reshaped(x, batch * places, size)


def _convolved(build: DecoderBuilder, x: Value, path: str, channels: int, stride: int) -> Value:
    size = build.decoder.hidden
    kernel = build.constant(build.load_float32(f"{path}.weight", size, channels, _KERNEL))
    bias = build.constant(build.load_float32(f"{path}.bias", size))
    convolution = Conv(kernel_shape=(_KERNEL,), pads=(1, 1), strides=(stride,))
    return build(path, Gelu(), build(path, convolution, x, kernel, bias))

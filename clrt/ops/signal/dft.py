"""DFT and STFT: discrete Fourier transforms along an axis, and of windows of a signal."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from clrt.errors import ShapeError, counted
from clrt.ir.dim_operations import floordiv
from clrt.ir.dims import Dim, provably_different
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, indexed_args, launch, optional
from clrt.kernels.variant import Lowering, Variant, reject_float64
from clrt.ops.base import OnnxNode, Op, Types
from clrt.ops.checks import agree, checked_sizes, need, normalize_axis
from clrt.ops.movement.common import elements, fresh_dim, fresh_dims, has_input
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, OnnxTraits
from clrt.util.fast_dataclass import dataclass


def _transform(
    node: Node,
    ctx: Lowering,
    *,
    n: int,
    length: int,
    sizes: tuple[int, int, int],
    steps: Sequence[int],
    inverse: bool = False,
    window: Value | None = None,
) -> list[Launch]:
    """Returns the launches of a Fourier transform.

    One launch fills the table of roots of unity, one transforms; [] for an empty output.

    A block is a group of transforms at equal distances in memory: of STFT the windows of a signal,
    of DFT the transforms at one index of the axes before the transformed one.

    Args:
        node: Node with input x and output y.
        ctx: Lowering context.
        n: Number of points of a transform.
        length: Number of elements of x per transform; if fewer than n, zeros follow them.
        sizes: Output elements per transform, transforms per block, number of blocks.
        steps: Strides from block to block, transform to transform, and element to element, in x,
            then in y; an element is a complex number if x or y is complex.
        inverse: Whether the transform is inverse.
        window: Window function, multiplied with x; None for none.
    """
    x, y = node.arg(0), node.output
    if 0 in y.dims:
        return []
    wide = DType.FLOAT64 if x.dtype is DType.FLOAT64 else DType.FLOAT32
    table = ctx.scratch(2 * n, wide)
    fill = KernelSpec.of(
        "signal/dft.cl",
        "dft_table",
        DATA_T=DType.FLOAT32.cl,
        ACC_T=wide.cl,
        COMPLEX=0,
        REAL=0,
        WINDOW=0,
    )
    kernel = KernelSpec.of(
        "signal/dft.cl",
        "dft",
        DATA_T=x.dtype.cl,
        STORAGE=x.dtype.storage,
        ACC_T=wide.cl,
        COMPLEX=int(_is_complex(x.dims, node)),
        REAL=int(y.dims[-1] == 1),
        WINDOW=int(window is not None),
    )
    args = dict(y=y, x=x, table=table, n=n, length=length, outputs=sizes[0])
    args |= indexed_args("s", steps[:3]) | indexed_args("t", steps[3:]) | optional(window=window)
    flops = 8 * prod(sizes) * length
    return [
        launch(fill, (n,), table=table, n=n, sign=1 if inverse else -1),
        launch(kernel, sizes, None, flops, divisor=n if inverse else 1, **args),
    ]


def _is_complex(dims: Sequence[int], node: Node) -> bool:
    """Returns whether input x of a DFT or STFT node is complex.

    The last axis of a complex x holds real and imaginary part.

    Args:
        dims: Shape of x; real signals of STFT may lack that axis.
        node: DFT or STFT node.
    """
    return dims[-1] == 2 and (not isinstance(node.op, STFT) or len(dims) == 3)


def _emit_dft(node: Node, ctx: Lowering) -> list[Launch]:
    x, y, op = node.arg(0), node.output, node.op_as(DFT)
    axis, n = op.geometry(x.dims, node.input_types)
    assert isinstance(n, int)
    inner, outer = prod(x.dims[axis + 1 : -1]), prod(x.dims[:axis])
    points, outputs = x.dims[axis], y.dims[axis]
    length = min(points, n // 2 + 1 if y.dims[-1] == 1 else n)
    steps = (points * inner, 1, inner, outputs * inner, 1, inner)
    sizes = (outputs, inner, outer)
    return _transform(node, ctx, n=n, length=length, sizes=sizes, steps=steps, inverse=op.inverse)


@register
@dataclass(frozen=True)
class DFT(Op):
    """Computes the discrete Fourier transform of `[..., 1]` (real) or `[..., 2]` (complex).

    Inputs: x; optional number of points and axis (default -2).

    Attributes:
        inverse: Whether the transform is inverse.
        onesided: Whether the output has only the first points // 2 + 1 points, which suffice for
            real x. If `inverse` is true, too, x has only these points, and the output is real.

    Numerics: roots and sums in float32, for float64 in float64.

    Source: ONNX DFT, opset 17 to 20.
    """

    inverse: bool = False
    onesided: bool = False

    onnx_traits = OnnxTraits(since_version=20)
    input_traits = InputTraits(plan_time=(1, 2))
    variants = (Variant("direct", _emit_dft, reject_float64),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        if node.opset < 20:
            node.set_input(2, np.array(node.attrs.pop("axis", 1)))
        return super().from_onnx(node)

    def geometry(self, dims: Sequence[Dim], inputs: Types) -> tuple[int, Dim]:
        """Returns the transformed axis and the number of points.

        Args:
            dims: Shape of x.
            inputs: Input types.

        Raises:
            ShapeError: The axis is out of range, or it is the last one, which holds real and
                imaginary parts.
        """
        axis_input, points = elements(inputs, 2), elements(inputs, 1)
        axis = normalize_axis(-2 if axis_input is None else int(axis_input[0]), len(dims), self)
        if axis == len(dims) - 1:
            raise ShapeError(
                f"DFT: axis {axis} holds the real and imaginary parts; expected another axis."
            )
        if points is not None:
            return axis, points[0]
        size = dims[axis]
        return axis, (size - 1) * 2 if self.inverse and self.onesided else size

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        if len(x.shape) < 2 or all(provably_different(x.shape[-1], parts) for parts in (1, 2)):
            raise ShapeError(f"DFT: the last axis of {x} must be 1 (real) or 2 (complex).")
        if any(has_input(inputs, i) and elements(inputs, i) is None for i in (1, 2)):
            return [TensorType(x.dtype, fresh_dims(len(x.shape)))]
        axis, n = self.geometry(x.shape, inputs)
        real = self.inverse and self.onesided
        half = self.onesided and not self.inverse
        dims = list(x.shape)
        dims[axis] = floordiv(n, 2) + 1 if half else n
        return [TensorType(x.dtype, (*dims[:-1], 1 if real else 2))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = inputs[0]
        assert x is not None
        types = [None if a is None else TensorType.of(a) for a in inputs]
        axis, n = self.geometry(x.shape, types)
        wide = x.astype(np.float64)
        signal = wide[..., 0] + 1j * wide[..., 1] if x.shape[-1] == 2 else wide[..., 0]
        points = int(n)
        if self.inverse and self.onesided:
            return (np.fft.irfft(signal, points, axis)[..., None].astype(x.dtype),)
        result = (np.fft.ifft if self.inverse else np.fft.fft)(signal, points, axis)
        if self.onesided:
            result = np.take(result, np.arange(points // 2 + 1), axis)
        return (np.stack([result.real, result.imag], -1).astype(x.dtype),)


def _emit_stft(node: Node, ctx: Lowering) -> list[Launch]:
    x, y, op = node.arg(0), node.output, node.op_as(STFT)
    step, n = op.geometry(node.input_types)
    _, frames, outputs = y.dims[:3]
    steps = (x.dims[1], step, 1, frames * outputs, outputs, 1)
    sizes = (outputs, frames, x.dims[0])
    return _transform(node, ctx, n=n, length=n, sizes=sizes, steps=steps, window=node.input(2))


@register
@dataclass(frozen=True)
class STFT(Op):
    """Computes Fourier transforms of windows of a signal `[B, length]` or `[B, length, 1 or 2]`.

    Inputs: B signals, stride between windows, optional window function, optional window length.
    Output: `[B, windows, points, 2]`, complex.

    Attributes:
        onesided: Whether the output has only the first points // 2 + 1 points, which suffice for
            real signals.

    Numerics: roots and sums in float32, for float64 in float64.

    Source: ONNX STFT, opset 17.
    """

    onesided: bool = True

    input_traits = InputTraits(plan_time=(1, 3), same_dtype=((0, 2),))
    variants = (Variant("direct", _emit_stft, reject_float64),)

    def geometry(self, inputs: Types) -> tuple[int, int]:
        """Returns the stride between windows, and the window length, in samples.

        Raises:
            ShapeError: Stride or window length is missing or not positive.
        """
        step, length = elements(inputs, 1), elements(inputs, 3)
        window = inputs[2] if len(inputs) > 2 else None
        if length is None and window is not None and window.shape is not None:
            length = list(window.shape[:1])
        if not length or not step:
            raise ShapeError("STFT: it needs a step, and a window or its length.")
        numbers = int(step[0]), int(length[0])
        if min(numbers) < 1:
            raise ShapeError(f"STFT: step {step[0]} and length {length[0]} must be positive.")
        return numbers

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(x.dtype, fresh_dims(4))]
        parts = x.shape[2] if len(x.shape) == 3 else 1
        if len(x.shape) not in (2, 3) or (isinstance(parts, int) and parts not in (1, 2)):
            raise ShapeError(
                f"STFT: the signal is {x}; expected [B, length] or [B, length, 1 or 2]."
            )
        unknown = any(
            has_input(inputs, i) and not need(inputs, i, self).has_numbers for i in (1, 3)
        )
        window = inputs[2] if len(inputs) > 2 else None
        if unknown or (window is not None and not window.is_static):
            return [TensorType(x.dtype, (x.shape[0], fresh_dim(), fresh_dim(), 2))]
        step, length = self.geometry(inputs)
        if window is not None and not agree(window, (length,)):
            raise ShapeError(f"STFT: a window {window} of frames of {length} elements.")
        frames = floordiv(x.shape[1] - length, step) + 1
        sizes = checked_sizes(
            [frames], lambda: f"STFT: a window of {counted(length, 'element')} is longer than {x}."
        )
        points = length // 2 + 1 if self.onesided else length
        return [TensorType(x.dtype, (x.shape[0], *sizes, points, 2))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, window = inputs[0], inputs[2] if len(inputs) > 2 else None
        assert x is not None
        types = [None if a is None else TensorType.of(a) for a in inputs]
        step, length = self.geometry(types)
        wide = x.astype(np.float64)
        if x.ndim == 3:
            wide = wide[..., 0] + 1j * wide[..., 1] if x.shape[-1] == 2 else wide[..., 0]
        frames = np.lib.stride_tricks.sliding_window_view(wide, length, axis=1)[:, ::step]
        if window is not None:
            frames = frames * window.astype(np.float64)
        result = np.fft.fft(frames, length, -1)
        if self.onesided:
            result = result[..., : length // 2 + 1]
        return (np.stack([result.real, result.imag], -1).astype(x.dtype),)

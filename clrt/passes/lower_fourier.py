"""DFT and STFT of few points -> GEMM and Conv with constant matrices.

A DFT is linear: a row of samples times a matrix of roots of unity. Real and imaginary parts are
adjacent in memory. So the matrix has a row and a column for each part, and the Reshapes around the
product are views. An STFT is a convolution: the stride is the frame step, the output channels are
the real and imaginary parts of frequencies.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import Array, IrOp
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuning_records import device_thresholds
from clrt.ops.base import Types
from clrt.ops.conv.conv import Conv
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.movement.common import elements, has_input
from clrt.ops.movement.pad import Pad
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import Reshape
from clrt.ops.op_builder import OpBuilder
from clrt.ops.pointwise.cast import Cast
from clrt.ops.signal.dft import DFT, STFT
from clrt.ops.signal.fourier import Transform
from clrt.passes.canonicalize_views import CanonicalizeViews, SimplifyTransposes
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.remove_identity import RemoveIdentity
from clrt.util.fast_dataclass import dataclass


class FourierThresholds(Thresholds):
    """Threshold of the choice to compute a Fourier transform as a product."""

    matrix_kib: int = tunable(
        16_400,
        "KiB",
        "Maximum size of a matrix, which grows as the square of the points, unlike the work of a "
        "fast transform. The default is for 2048 points of a real signal and one half of the "
        "spectrum: no audio preprocessor in wide use needs more.",
        most=1 << 20,
    )

    group: ClassVar = "fourier_matrices"


@dataclass(eq=False)
class LowerFourier(Pass):
    """DFT -> Reshape, FusedMatMul with a constant, Reshape; STFT -> Conv with constant weights.

    Applies if the number of points is constant and the matrix is not too large.

    Attributes:
        limits: Thresholds of the device.
    """

    limits: FourierThresholds = field(default_factory=FourierThresholds)

    name = "use_fourier_matrices"
    follow_ups = (SimplifyTransposes(), RemoveIdentity(), CanonicalizeViews())

    def tuned(self, caps: DeviceCaps) -> Pass:
        return LowerFourier(device_thresholds(FourierThresholds, caps))

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (DFT, STFT))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        transform = (
            _transform_of_dft(node) if isinstance(node.op, DFT) else _transform_of_stft(node)
        )
        if isinstance(transform, Transform):
            transform = self._reject_memory(view, node, transform) or transform
        return (
            Miss(transform, node)
            if isinstance(transform, str)
            else Match(view, node, payload=transform)
        )

    def _reject_memory(self, view: GraphView, node: Node, transform: Transform) -> str | None:
        """Returns why a matrix exceeds the size limit or fold budget; None if it fits."""
        size = transform.nbytes
        if size > self.limits.matrix_kib << 10:
            return f"a matrix of {size >> 20} MiB"
        if _key(node, transform) not in view.memo and not view.budget.has(size, size):
            return "the budget of constant folding is used up (CLRT_FOLD_LIMIT)"
        return None

    def rewrite(self, match: Match) -> Patch:
        build, node, transform = match.builder(self.name), match.root, match.payload
        x, memo, key = node.arg(0), match.view.memo, _key(node, transform)
        signal = x if x.dtype is DType.FLOAT32 else build.add(Cast(DType.FLOAT32), x)
        if key not in memo:
            match.view.budget.take(transform.nbytes, transform.nbytes)
            memo[key] = build.numbers(_numbers(node, transform), DType.FLOAT32)
        make = _dft if isinstance(node.op, DFT) else _stft
        value = make(build, node, signal, transform, memo[key])
        if x.dtype is not DType.FLOAT32:
            value = build.add(Cast(x.dtype), value)
        return build.patch({node.output: value})


def _transform_of_dft(node: Node) -> Transform | str:
    """Returns the transform that a DFT node applies along its axis, or a reject reason."""
    op, x, types = node.op_as(DFT), node.arg(0), node.input_types
    if not _are_numbers(types, 1, 2):
        return "its axis or its number of points is computed"
    parts = _parts(x, -1)
    if isinstance(parts, str):
        return parts
    assert x.shape is not None
    axis, points = op.geometry(x.shape, types)
    if not isinstance(points, int):
        return "its number of points depends on the input"
    real = op.inverse and op.onesided
    outputs = points // 2 + 1 if op.onesided and not real else points
    max_samples, size = points // 2 + 1 if real else points, x.shape[axis]
    length = min(size, max_samples) if isinstance(size, int) else max_samples
    if min(points, length) < 1:
        return "the transform has no points"
    return Transform(points, length, parts, outputs, op.inverse, real)


def _transform_of_stft(node: Node) -> Transform | str:
    """Returns the transform that an STFT node applies to each frame, or a reject reason."""
    op, x, window, types = node.op_as(STFT), node.arg(0), node.input(2), node.input_types
    if not _are_numbers(types, 1, 3):
        return "its step or its number of points is computed"
    if window is not None and not (window.is_constant and window.has_numbers):
        return "its window is computed"
    parts = _parts(x, 2)
    if isinstance(parts, str):
        return parts
    _, points = op.geometry(types)
    return Transform(points, points, parts, points // 2 + 1 if op.onesided else points)


def _are_numbers(types: Types, *indices: int) -> bool:
    """Whether the elements of the inputs at `indices` are known numbers, or the inputs omitted."""
    known = [elements(types, i) for i in indices if has_input(types, i)]
    return all(f is not None and all(isinstance(d, int) for d in f) for f in known)


def _parts(x: Value, axis: int) -> int | str:
    """Returns the numbers per element of x: 1 (real) or 2 (complex), or a reject reason.

    Args:
        x: Input of a DFT or STFT.
        axis: Index of the axis of real and imaginary part. If x has no such axis, x is real.
    """
    if x.shape is None or not x.dtype.is_float or x.dtype is DType.FLOAT64:
        return f"its input is {x.type}"
    if axis >= len(x.shape):
        return 1
    parts = x.shape[axis]
    return parts if isinstance(parts, int) else "it may be real or complex"


def _key(node: Node, transform: Transform) -> tuple[object, ...]:
    """Returns the key under which the pass caches the matrix that replaces a DFT or STFT.

    Nodes with equal keys share one matrix.

    Args:
        node: The DFT or STFT.
        transform: The transform that it applies.
    """
    window = node.input(2) if isinstance(node.op, STFT) else None
    numbers = None if window is None else window.numbers
    return type(node.op), transform, None if numbers is None else numbers.tobytes()


def _numbers(node: Node, transform: Transform) -> Array:
    """Computes the constant operand that replaces a DFT or STFT, in float64.

    Returns:
        For a DFT the matrix `[transform.rows, transform.columns]`. For an STFT weights of a Conv,
        `[transform.columns, numbers per sample, points]`, multiplied by the window; a sample has 1
        number (real) or 2 (complex).
    """
    matrix = transform.matrix()
    if isinstance(node.op, DFT):
        return matrix.reshape(transform.rows, transform.columns)
    window = node.input(2)
    if window is not None:
        assert window.numbers is not None
        matrix *= window.numbers.astype(np.float64).reshape(-1, 1, 1, 1)
    return matrix.reshape(*matrix.shape[:2], transform.columns).transpose(2, 1, 0)


def _dft(build: OpBuilder, node: Node, x: Value, transform: Transform, matrix: Value) -> Value:
    """Builds a DFT: moves its axis last, multiplies by the matrix, moves the axis back.

    Args:
        node: The DFT.
        x: Input of the DFT as float32.
        transform: Transform along the axis.
        matrix: Constant `[transform.rows, transform.columns]`.
    """
    op = node.op_as(DFT)
    assert x.shape is not None
    rank = len(x.shape)
    axis, _ = op.geometry(x.shape, node.input_types)
    order = (*(a for a in range(rank - 1) if a != axis), axis, rank - 1)
    lines = _fitted(build, x, axis, transform.length)
    if axis != rank - 2:
        lines = build.add(Transpose(order), lines)
    # 0 keeps a dim. A single line becomes a matrix of one row.
    kept_dims = (0,) * (rank - 2)
    rows = build.add(Reshape(), lines, build.ints(*(kept_dims or (1,)), transform.rows))
    value = build.add(FusedMatMul(), rows, matrix)
    parts = 1 if transform.real else 2
    value = build.add(Reshape(), value, build.ints(*kept_dims, transform.outputs, parts))
    if axis != rank - 2:
        value = build.add(Transpose(tuple(map(order.index, range(rank)))), value)
    return value


def _fitted(build: OpBuilder, x: Value, axis: int, length: int) -> Value:
    """Crops x, or pads it with zeros at the end, to `length` elements along an axis."""
    assert x.shape is not None
    size, along = x.shape[axis], build.ints(axis)
    if not isinstance(size, int):
        return build.add(Pad(), x, build.dims((0, length - size)), None, along)
    if size == length:
        return x
    return build.slice(x, 0, length, axis)


def _stft(build: OpBuilder, node: Node, x: Value, transform: Transform, weights: Value) -> Value:
    """Builds an STFT as a convolution whose stride is the frame step.

    Args:
        node: The STFT.
        x: Signal of the STFT as float32.
        transform: Transform of each frame.
        weights: Constant weights of the convolution, with the window.
    """
    op = node.op_as(STFT)
    step, points = op.geometry(node.input_types)
    if transform.parts == 1:
        signal = build.add(Reshape(), x, build.ints(0, 1, -1))
    else:
        signal = build.add(Transpose((0, 2, 1)), x)
    maps = build.add(Conv(kernel_shape=(points,), strides=(step,)), signal, weights)
    frames = build.add(Transpose((0, 2, 1)), maps)
    return build.add(Reshape(), frames, build.ints(0, 0, transform.outputs, 2))

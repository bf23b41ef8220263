"""Resize: resamples tensors along some of their axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cmp_to_key
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, UnsupportedError, counted
from clrt.ir.dims import Dim, provably_different, provably_equal
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.ir.runtime_values import RuntimeValue, tensor
from clrt.kernels.resample_tables import (
    SamplingRule,
    extrapolates,
    sampling_taps,
    scaled_size,
)
from clrt.kernels.spec import Launch
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import HostContext, OnnxNode, Op, Types
from clrt.ops.checks import checked_sizes, need, normalize_axis
from clrt.ops.control.host_driven import dtype_of
from clrt.ops.movement.common import elements, fresh_dim, has_input
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, OnnxTraits
from clrt.ops.vision.resample import AxisSampling, sample
from clrt.ops.vision.resample_launches import sample_launches
from clrt.util.fast_dataclass import dataclass

_Mode: TypeAlias = Literal["nearest", "linear", "cubic"]
_Coordinates: TypeAlias = Literal[
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_crop_and_resize", "tf_half_pixel_for_nn",
]  # fmt: skip
# "by_scale" is the mode of opset 10.
_Nearest: TypeAlias = Literal[
    "round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "by_scale"
]


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    dtype = node.arg(0).dtype
    op = node.op_as(Resize)
    copies = all(s.is_copy for s in op.samplings(node.arg(0).dims, node.input_types))
    fits = dtype.is_int or dtype.compute == "float"
    return None if copies or fits else f"no kernel for {dtype}"


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, y, op = node.arg(0), node.output, node.op_as(Resize)
    if 0 in y.dims:
        return []
    return sample_launches(x, y, op.samplings(x.dims, node.input_types), ctx)


# Maximum scale, more than any tensor has elements.
_MAX_SCALE = 2.0**31


@register
@dataclass(frozen=True)
class Resize(Op):
    """Resamples x along some axes: nearest, linear or cubic.

    Inputs: x; roi, the region that "tf_crop_and_resize" resamples; scales or sizes, one per axis of
    `axes`. Each axis is resampled separately, by a table of elements and weights made at plan time.
    If the roi is computed at run time, one plan serves all rois.

    Attributes:
        antialias: Whether linear and cubic windows widen if the axis shrinks.
        axes: Resampled axes; () for all.
        coordinate_transformation_mode: How output coordinates map to x.
        cubic_coeff_a: Coefficient of `cubic_weights`.
        exclude_outside: Whether elements outside x have weight 0.
        extrapolation_value: Output for coordinates outside x with "tf_crop_and_resize".
        keep_aspect_ratio_policy: Whether sizes are exact ("stretch"), or upper or lower bounds.
        mode: Interpolation.
        nearest_mode: Rounding of coordinates in mode "nearest".

    Numerics: sums in float32, also for integers, which round half to even and saturate.

    Source: ONNX Resize, opset 10 to 19.
    """

    antialias: bool = False
    axes: tuple[int, ...] = ()
    coordinate_transformation_mode: _Coordinates = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: Literal["stretch", "not_larger", "not_smaller"] = "stretch"
    mode: _Mode = "nearest"
    nearest_mode: _Nearest = "round_prefer_floor"

    onnx_traits = OnnxTraits(since_version=19)
    input_traits = InputTraits(plan_time=(1, 2, 3), host_driven=(1,))
    variants = (Variant("separable", _emit, _reject),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        if node.opset < 11:
            scales = node.constants.get(node.inputs[1])
            node.inputs[1:] = ["", *node.inputs[1:]]
            node.attrs.update(
                coordinate_transformation_mode="asymmetric", nearest_mode=_old_nearest(scales)
            )
        return super().from_onnx(node)

    def to_onnx(self) -> dict[str, Any]:
        modes: tuple[str, str] = self.coordinate_transformation_mode, self.nearest_mode
        if modes == ("tf_half_pixel_for_nn", "floor"):
            modes = "half_pixel", "round_prefer_ceil"
        for mode in modes:
            if mode in ("tf_half_pixel_for_nn", "by_scale"):
                raise UnsupportedError(
                    f"opset {self.onnx_traits.since_version} has no Resize of mode '{mode}'"
                )
        names = "coordinate_transformation_mode", "nearest_mode"
        return {**super().to_onnx(), **dict(zip(names, modes, strict=True))}

    def _axes(self, rank: int) -> tuple[int, ...]:
        """Returns the resampled axes of an input of rank `rank` as non-negative numbers.

        Raises:
            ShapeError: An axis is repeated or out of range.
        """
        axes = tuple(normalize_axis(a, rank, self) for a in self.axes) or tuple(range(rank))
        if len(set(axes)) < len(axes):
            raise ShapeError(f"Resize: axes {list(self.axes)} name an axis twice.")
        return axes

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if not (has_input(inputs, 2) or has_input(inputs, 3)):
            raise ShapeError("Resize: it has neither scales nor sizes.")
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        axes, dims = self._axes(len(x.shape)), list(x.shape)
        scales, sizes = _numbers(inputs, 2), elements(inputs, 3)
        sizes = sizes or None
        wanted: Sequence[Any] | None = sizes if sizes is not None else scales
        if wanted is not None and len(wanted) != len(axes):
            raise ShapeError(
                f"Resize: {counted(len(wanted), 'number')} for "
                f"{counted(len(axes), 'axis', 'axes')} of {x}."
            )
        if scales is not None and not (np.abs(scales) < _MAX_SCALE).all():
            raise ShapeError(f"Resize: the scales {scales} of {x} are not finite, or too large.")
        numbers = all(isinstance(dims[a], int) for a in axes)
        stretch = self.keep_aspect_ratio_policy == "stretch"
        for place, axis in enumerate(axes):
            if sizes is not None and stretch:
                dims[axis] = sizes[place]
            elif sizes is not None and not (numbers and all(isinstance(s, int) for s in sizes)):
                dims[axis] = fresh_dim()
            elif sizes is not None:
                common = self._common(x.shape, axes, sizes)
                dims[axis] = int(common * int(x.shape[axis]) + 0.5)
            elif scales is not None:
                dims[axis] = _scaled(x.shape[axis], scales[place])
            else:
                dims[axis] = fresh_dim()
        shape = checked_sizes(dims, lambda: f"Resize: {x} cannot have the sizes {dims}.")
        if any(provably_equal(x.shape[a], 0) and provably_different(shape[a], 0) for a in axes):
            raise ShapeError(
                f"Resize: {x} has no elements, and cannot be resized to {list(shape)}."
            )
        return [TensorType(x.dtype, shape)]

    def _common(self, shape: Sequence[Dim], axes: Sequence[int], sizes: Sequence[Dim]) -> float:
        """Returns the common scale of all resampled axes that keeps the aspect ratio.

        Args:
            shape: Shape of x.
            axes: Resampled axes.
            sizes: Requested size per resampled axis.
        """
        pick = min if self.keep_aspect_ratio_policy == "not_larger" else max
        pairs = [(int(shape[a]), int(s)) for a, s in zip(axes, sizes, strict=True)]
        return pick((size / old_size for old_size, size in pairs if old_size), default=1.0)

    def samplings(self, dims: Sequence[int], inputs: Types) -> list[AxisSampling]:
        """Returns the axes to resample, in the cheapest order; axes that stay the same are omitted.

        Args:
            dims: Shape of x.
            inputs: Input types, with the elements of all inputs but x.

        Raises:
            ShapeError: Scales and sizes are both empty, or do not fit x.
        """
        axes = self._axes(len(dims))
        (out,) = self.infer(inputs)
        scales, sizes = _numbers(inputs, 2), elements(inputs, 3)
        if not sizes and scales is None:
            raise ShapeError("Resize: its scales and sizes are empty.")
        roi = _numbers(inputs, 1)
        crops = self.coordinate_transformation_mode == "tf_crop_and_resize"
        samplings = []
        for place, axis in enumerate(axes):
            assert out.shape is not None
            size, outputs = dims[axis], cast(int, out.shape[axis])
            scale = None
            if not sizes:
                assert scales is not None
                scale = scales[place]
            elif self.keep_aspect_ratio_policy != "stretch":
                scale = self._common(dims, axes, sizes)
            window = (0.0, 1.0)
            if crops and roi:
                window = (roi[place], roi[place + len(axes)])
            same = size == outputs and (scale is None or math.isclose(scale, 1))
            if not (same and window == (0.0, 1.0)) and size and outputs:
                rule = SamplingRule(
                    mode=self.mode,
                    coordinates=self.coordinate_transformation_mode,
                    nearest=self.nearest_mode,
                    cubic=self.cubic_coeff_a,
                    antialias=self.antialias,
                    exclude_outside=self.exclude_outside,
                    extrapolation=self.extrapolation_value,
                    scale=scale,
                    start=window[0],
                    end=window[1],
                    # In float32, the dtype of a scale, 3 / 0.6 is 5; in float64 it is less.
                    double=bool(sizes),
                )
                samplings.append(self._sampling(axis, size, outputs, rule))
        return sorted(samplings, key=cmp_to_key(_shrinks_more))

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        x = tensor(inputs[0])
        numbers = (None if b is None else TensorType.of(host.read(b)) for b in inputs[1:])
        types = [TensorType(dtype_of(x), tuple(x.shape)), *numbers]
        (out,) = self.infer(types)
        dims = [int(d) for d in out.shape or ()]
        if 0 in dims:
            return [np.zeros(dims, out.dtype.numpy)]
        samplings = self.samplings(x.shape, types)
        return [sample(x, samplings, host) if samplings else x]

    def _sampling(self, axis: int, size: int, outputs: int, rule: SamplingRule) -> AxisSampling:
        taps, outside = 1, False
        if self.mode != "nearest":
            taps = 2 * (1 if self.mode == "linear" else 2)
            if self.antialias:
                taps = sampling_taps(size, outputs, **rule.constants)
        if self.coordinate_transformation_mode == "tf_crop_and_resize":
            outside = bool(extrapolates(size, outputs, **rule.constants))
        return AxisSampling(axis, size, outputs, taps, outside, rule)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = inputs[0]
        assert x is not None
        types = [None if a is None else TensorType.of(a) for a in inputs]
        samplings = self.samplings(x.shape, types)
        result = x if all(s.is_copy for s in samplings) else x.astype(np.float64)
        for s in samplings:
            tables = s.tables
            if s.is_copy:
                result = np.take(result, tables.indices[:, 0], s.axis)
                continue
            after = [1] * (result.ndim - s.axis - 1)
            picked = np.take(result, tables.indices, s.axis)
            result = (picked * tables.weights.reshape(*tables.weights.shape, *after)).sum(
                s.axis + 1
            )
            if tables.values is not None:
                result = result + tables.values.reshape(-1, *after)
        if result.dtype != x.dtype and x.dtype.kind in "iu":
            info = np.iinfo(x.dtype)
            result = np.clip(np.rint(result), info.min, info.max)
        (out,) = self.infer(types)
        assert out.shape is not None
        return (result.astype(x.dtype).reshape([int(d) for d in out.shape]),)


def _numbers(inputs: Types, index: int) -> list[float] | None:
    """Returns the elements of float input `index`; None if it is omitted, empty or unknown."""
    if not has_input(inputs, index):
        return None
    type_ = inputs[index]
    numbers = None if type_ is None else type_.numbers
    return [float(v) for v in numbers.reshape(-1)] if numbers is not None and numbers.size else None


def _scaled(dim: Dim, scale: float) -> Dim:
    """Returns a dim times a scale, multiplied in float32 and rounded down.

    A symbolic dim is multiplied exactly if the scale is an integer; else the result is an unknown
    dim.
    """
    if isinstance(dim, int):
        return scaled_size(dim, scale=float(scale))
    return dim * int(scale) if float(scale).is_integer() else fresh_dim()


def _shrinks_more(a: AxisSampling, b: AxisSampling) -> int:
    """Compares two axes for sorting: negative if `a` has the smaller ratio of outputs to size.

    Axes that shrink most come first, which leaves less work for later axes.
    """
    return a.outputs * b.size - b.outputs * a.size


def _old_nearest(scales: Array | None) -> str:
    """Returns the nearest_mode that corresponds to Resize of opset 10.

    Args:
        scales: Scales of all axes; None if unknown.

    Returns:
        "ceil" if some axes shrink and none grows; "floor" if no axis shrinks; "by_scale" if some
        shrink and others grow, or the scales are unknown.
    """
    if scales is None or ((scales < 1).any() and (scales > 1).any()):
        return "by_scale"
    return "ceil" if (scales < 1).any() else "floor"

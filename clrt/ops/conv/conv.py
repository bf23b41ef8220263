"""Conv: cross-correlation over 1 to 3 spatial axes, by im2col and GEMM or directly (depthwise)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import product as pairs
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.dims import Shape, provably_different
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.kernels import gemm_variants
from clrt.kernels.conv_gpu import ImageWindows, emit_windows
from clrt.kernels.gemm_cpu import emit_cpu, packed_width
from clrt.kernels.gemm_gpu import GPU_TILES
from clrt.kernels.gemm_problem import (
    Epilogue,
    EpilogueOperand,
    GemmProblem,
    MatrixOperand,
    image_chunks,
)
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, launch
from clrt.kernels.strided import launch_grid, pad_rank
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Emit, Lowering, Variant, reject_but_float32
from clrt.ops.base import Op, Types
from clrt.ops.checks import checked_sizes, need
from clrt.ops.conv.conv_gradients import (
    Geometry,
    bias_gradient,
    data_gradient,
    weight_gradient,
    window_sizes,
)
from clrt.ops.conv.costs import (
    DirectCpuEfficiency,
    DirectEfficiency,
    DirectGpuEfficiency,
    direct_work,
    gathered_work,
    unfolded_work,
)
from clrt.ops.conv.epilogue_operands import epilogue_operand_fits, operand_of
from clrt.ops.conv.scalable_weights import HasScalableWeights
from clrt.ops.epilogue import EpilogueOp, after_bias, fused_reference, fused_type
from clrt.ops.gradients.shapes import known_shape
from clrt.ops.matmul.matmul import make_epilogue
from clrt.ops.pointwise.fused import compute_type, symbolic_shape
from clrt.ops.registry import register
from clrt.ops.traits import MemoryTraits
from clrt.ops.vision.pooling import AutoPad, WindowPool
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

_AXES = 3
DEPTHWISE_CPU = tuned("conv_depthwise_cpu", {"T_VW": (4, 8, 16)}, T_VW=8)
DEPTHWISE_GPU = tuned("conv_depthwise_gpu", {"T_ROWS": (1, 2, 4, 8)}, T_ROWS=2)
# Maximum rows of a window of the depthwise GPU kernel, which unrolls them.
_MAX_WINDOW_ROWS = 7


def _epilogue(node: Node) -> Epilogue:
    """Returns the epilogue of a convolution: its bias, then the op's `steps`."""
    op = node.op_as(Convolution)
    rows = node.output.dims[1] // op.group
    operands = [operand_of(value, node.output, rows) for value in op.extras(node)]
    bias = node.input(2) if op.biased else None
    if bias is not None:
        operands.insert(0, EpilogueOperand(bias, (0, rows, 1), per_column=False))
    return make_epilogue(op.program(node.input_types), node.output.dtype, operands)


def lower_conv(node: Node) -> GemmProblem:
    """Lowers a convolution to the GEMM of weights (A) and im2col columns (B).

    In the result B is x itself, which equals the columns only for windows of one element. For
    larger windows, `unfolded` replaces B by im2col columns, or the kernel gathers the columns.

    Raises:
        UnsupportedError: There are more than three spatial axes, or kernels do not support the
            epilogue.
    """
    x, w, y, op = node.arg(0), node.arg(1), node.output, node.op_as(Convolution)
    if len(x.dims) - 2 > _AXES:
        raise UnsupportedError(f"{len(x.dims) - 2} spatial axes; the kernel walks up to {_AXES}")
    epilogue = _epilogue(node)
    m, k, n = w.dims[0] // op.group, prod(w.dims[1:]), prod(y.dims[2:])
    weights = MatrixOperand(BufferArg(w), (0, m * k, k, 1))
    images = MatrixOperand(BufferArg(x), (op.group * k * n, k * n, n, 1))
    batch = (x.dims[0], op.group)
    kind = compute_type(x.dtype)
    return GemmProblem(y, x.dtype, batch, m, n, k, weights, images, epilogue, kind)


def window_of(node: Node) -> WindowPool:
    """Returns the window geometry of a convolution, whose weights have a static shape."""
    window = node.op_as(Convolution).window(node.arg(1).shape)
    assert window is not None
    return window


def unfolded(
    node: Node, product: GemmProblem, ctx: Lowering, width: int
) -> Iterator[tuple[list[Launch], GemmProblem]]:
    """Splits a convolution into chunks of images whose im2col columns fit a memory limit.

    Args:
        node: Convolution.
        product: GEMM of weights and columns for all images, from `lower_conv`.
        width: Columns of a panel of B; 0 for a row-major B.

    Yields:
        For each chunk, its im2col launches, and the GEMM that reads the columns. For windows of one
        element, only `product`, without launches.
    """
    x = node.arg(0)
    window = window_of(node)
    if window.is_pointwise:
        yield [], product
        return
    images, groups = product.batch
    columns = round_up(product.n, width) if width else product.n
    matrix = product.k * columns
    geometry = window.geometry(x.dims[2:], node.output.dims[2:])
    # CPU GEMM kernels read B in panels.
    entry = "im2col_cpu" if width else "im2col"
    kernel = KernelSpec.of("conv/im2col.cl", entry, DATA_T=product.dtype.cl_bits)
    image_bytes = groups * matrix * product.dtype.itemsize
    for first, count, chunk in image_chunks(images, image_bytes, ctx):
        target = BufferArg(chunk.scratch(count * groups * matrix, product.dtype))
        channels = node.arg(1).dims[1]
        source = BufferArg(product.b.buffer.buffer, first * prod(x.dims[1:]))
        sizes = {"P": product.n, "K": product.k, "width": width or columns, "columns": columns}
        sizes |= {"batches": count * groups, "channels": channels}
        grid = (columns // width, count * groups) if width else (columns, product.k, count * groups)
        local = (1, 1) if width else None
        unfold = launch(kernel, grid, local, y=target, x=source, **sizes, **geometry)
        part = replace(
            product,
            batch=(count, groups),
            b=MatrixOperand(target, (groups * matrix, matrix, width or columns, 1), bool(width)),
            y_offset=first * groups * product.m * product.n,
            epilogue=product.epilogue.from_batch(first),
        )
        yield ([unfold] if product.k else []), part


def _reject_depthwise(node: Node, caps: DeviceCaps) -> str | None:
    x, w = node.arg(0), node.arg(1)
    if not x.dtype.is_float or x.dtype is DType.FLOAT64:
        return f"no kernel for {x.dtype}"
    if w.dims[1] != 1 or len(x.dims) - 2 > _AXES:
        return f"groups of {w.dims[1]} channels"
    return None


def _reject_depthwise_cpu(node: Node, caps: DeviceCaps) -> str | None:
    return reject_but_float32(node, caps) or _reject_depthwise(node, caps)


def _reject_depthwise_gpu(node: Node, caps: DeviceCaps) -> str | None:
    if (reason := _reject_depthwise(node, caps)) is not None:
        return reason
    window = node.op_as(Convolution).window(symbolic_shape(node.arg(1)))
    if window is None:
        return "the size of the window is not fixed"
    rows = _window_defines(window)["S_KERNEL1"]
    return f"a window of {rows} rows is too large to unroll" if rows > _MAX_WINDOW_ROWS else None


def _window_defines(window: WindowPool) -> dict[str, int]:
    """Returns the macros of a window's size, strides and dilations along the last two axes."""
    sizes = (1,) * len(window.kernel_shape)
    names = pairs(("kernel", "stride", "dilation"), (1, 2))
    geometry = window.geometry(sizes, sizes)
    return {f"S_{name.upper()}{axis}": geometry[f"{name}{axis}"] for name, axis in names}


class DepthwisePartition(Thresholds):
    """Threshold of the partition of depthwise convolutions over CPU cores."""

    rows: int = tunable(16, "rows of a plane", "Rows per work-group, to amortize its start.")

    group: ClassVar = "conv_depthwise_shares"


def _emit_depthwise_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    product = lower_conv(node)
    product.epilogue.check_vectors()
    planes, rows = product.batches * product.m, prod(node.output.dims[2:-1])
    kernel = KernelSpec.of(
        "conv/conv_depthwise.cl",
        "conv_depthwise_cpu",
        **ctx.tunables(DEPTHWISE_CPU),
        **product.epilogue.defines,
    )
    share = ctx.thresholds(DepthwisePartition).rows
    size, args = (ceil_div(rows, share), planes), _depthwise_args(node, product)
    return [launch(kernel, size, (1, 1), product.flops, rows=share, **args)] if all(size) else []


def _emit_depthwise_gpu(node: Node, ctx: Lowering) -> list[Launch]:
    outer, rows, columns = pad_rank(node.output.dims[2:], 1, _AXES)
    defines = ctx.tunables(DEPTHWISE_GPU)
    if len(node.output.dims) == 3:
        defines["T_ROWS"] = 1
    size = (columns, outer * ceil_div(rows, defines["T_ROWS"]))
    window = _window_defines(window_of(node))
    return _depthwise("conv_depthwise_gpu", size, node, ctx, **defines, **window)


def _emit_depthwise_any(node: Node, ctx: Lowering) -> list[Launch]:
    dims = node.output.dims
    return _depthwise("conv_depthwise_any", (dims[-1], prod(dims[2:-1])), node, ctx)


def _depthwise(
    entry: str, size: tuple[int, int], node: Node, ctx: Lowering, **defines: int
) -> list[Launch]:
    """Emits a depthwise convolution kernel that does not use vectors.

    A plane is one output channel of one image. Returns [] if the output is empty.

    Args:
        entry: Entry point of the kernel.
        size: Work-items per plane, along its last axis and along its other axes.
        defines: Macros besides those of dtypes and epilogue.
    """
    product, x, y = lower_conv(node), node.arg(0), node.output
    planes = product.batches * product.m
    if not all((*size, planes)):
        return []
    kernel = KernelSpec.of(
        "conv/conv_depthwise.cl",
        entry,
        VW=1,
        DATA_T=x.dtype.cl,
        STORAGE=x.dtype.storage,
        Y_T=y.dtype.cl,
        Y_STORAGE=y.dtype.storage,
        **defines,
        **product.epilogue.defines,
    )
    args = _depthwise_args(node, product)
    return [launch_grid(kernel, (*size, planes), ctx.caps, product.flops, planes=planes, **args)]


def _depthwise_args(node: Node, product: GemmProblem) -> dict[str, Any]:
    args: dict[str, Any] = {"y": node.output, "x": node.arg(0), "weights": node.arg(1)}
    args |= {"outputs": product.batch[1] * product.m, "maps": product.m}
    geometry = window_of(node).geometry(node.arg(0).dims[2:], node.output.dims[2:])
    return args | geometry | product.epilogue.args


def _emit_gpu(node: Node, ctx: Lowering) -> list[Launch]:
    x, w, window = node.arg(0), node.arg(1), window_of(node)
    geometry = {} if window.is_pointwise else window.geometry(x.dims[2:], node.output.dims[2:])
    windows = ImageWindows(w.dims[1], prod(w.dims[2:]), prod(x.dims[2:]), geometry)
    return emit_windows(lower_conv(node), windows, ctx)


_GPU = Variant("conv_gpu", _emit_gpu, reject_but_float32, GPU_TILES, work=gathered_work)


def _emit(emit: gemm_variants.EmitProduct) -> Emit:
    """Returns the emit function of a convolution by im2col and the GEMM kernel of `emit`."""

    def launches(node: Node, ctx: Lowering) -> list[Launch]:
        product = lower_conv(node)
        if product.is_empty:
            return []
        width = packed_width(product, ctx) if emit is emit_cpu else 0
        parts = unfolded(node, product, ctx, width)
        return [x for unfold, part in parts for x in (*unfold, *emit(part, ctx))]

    return launches


@dataclass(frozen=True)
class Convolution(Op):
    """Base class of convolutions (cross-correlations), with the attributes of ONNX Conv.

    Inputs: x `[N, C, spatial axes …]` for N images of C channels, w `[O, C / group, window …]` for
    O output channels, then those of the subclass, such as a bias. Kernels compute, per image and
    group, weights `[O / group, K]` times columns `[K, positions]`, where K is C / group times the
    window size. If the window is one element, the columns are x itself.

    Attributes:
        kernel_shape: Window size per spatial axis; () for that of w.
        strides: Distance between windows, per spatial axis; () for 1.
        dilations: Distance between elements of a window, per spatial axis; () for 1.
        pads: Padding before each spatial axis, then behind each; () for 0.
        auto_pad: Rule that computes the padding; "NOTSET" for `pads`.
        group: Number of groups into which the channels are divided.

    Class attributes:
        biased: Whether the optional input 2 is a bias `[O]`.
    """

    kernel_shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    auto_pad: AutoPad = "NOTSET"
    group: int = 1

    biased: ClassVar[bool] = True

    def program(self, inputs: Types) -> tuple[ElementwiseInstruction, ...]:
        """Returns the epilogue: steps over the product (operand 0), the bias and the `extras`.

        Args:
            inputs: Types of the node's inputs.

        Returns:
            The steps; () if the product is the output.
        """
        return after_bias((), 0) if self._has_bias(inputs) else ()

    def extras(self, node: Node) -> list[Value]:
        """Returns the inputs of a node that the epilogue reads besides the bias; [] by default."""
        return []

    def _has_bias(self, inputs: Types) -> bool:
        return self.biased and len(inputs) > 2 and inputs[2] is not None

    def window(self, weights: Shape | None) -> WindowPool | None:
        """Returns the geometry of the windows; None if their size is unknown or not of w's rank.

        Args:
            weights: Shape of w; None if unknown.
        """
        kernel = self.kernel_shape
        if not kernel and weights is not None:
            kernel = tuple(d for d in weights[2:] if isinstance(d, int))
        if not kernel or (weights is not None and len(kernel) != len(weights) - 2):
            return None
        return WindowPool(kernel, self.strides, self.dilations, self.pads, self.auto_pad)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, w = need(inputs, 0, self), need(inputs, 1, self)
        window = self.window(w.shape)
        self._check(x, w, inputs[2] if len(inputs) > 2 else None)
        if x.shape is None or w.shape is None or window is None:
            return [TensorType(x.dtype, None)]
        window.check(x.shape[2:], self)
        dims = checked_sizes(
            (window.out_dim(axis, size) for axis, size in enumerate(x.shape[2:])),
            lambda: f"{self.name}: the window {window.kernel_shape} is larger than {x}.",
        )
        return [TensorType(x.dtype, (x.shape[0], w.shape[0], *dims))]

    def _check(self, x: TensorType, w: TensorType, bias: TensorType | None) -> None:
        """Checks the types of the inputs against each other and the attributes.

        Raises:
            ShapeError: Dtypes, ranks, channels, groups, the window or the bias do not fit.
        """
        if x.dtype is not w.dtype or (bias is not None and bias.dtype is not x.dtype):
            raise ShapeError(f"{self.name}: x {x}, w {w} and bias must have one dtype.")
        if x.shape is None or w.shape is None:
            return
        if len(x.shape) < 3 or len(x.shape) != len(w.shape):
            raise ShapeError(f"{self.name}: x {x} and w {w} must have one rank, at least 3.")
        per_axis = {v for v in (self.kernel_shape, self.strides, self.dilations) if v}
        if any(len(v) != len(x.shape) - 2 for v in per_axis) or (
            self.pads and len(self.pads) != 2 * len(x.shape) - 4
        ):
            raise ShapeError(f"{self.name}: {self} does not match {len(x.shape) - 2} spatial axes.")
        for known, actual in zip(self.kernel_shape, w.shape[2:], strict=False):
            if provably_different(actual, known):
                raise ShapeError(
                    f"{self.name}: kernel_shape {self.kernel_shape} does not match w {w}."
                )
        channels, maps, per_group = x.shape[1], w.shape[0], w.shape[1]
        if self.group < 1:
            raise ShapeError(f"{self.name}: group {self.group}; expected 1 or more.")
        if provably_different(channels, per_group * self.group):
            raise ShapeError(
                f"{self.name}: {channels} channels are not {self.group} groups of {per_group}."
            )
        if isinstance(maps, int) and maps % self.group:
            raise ShapeError(f"{self.name}: {maps} maps do not divide into {self.group} groups.")
        wanted = TensorType(x.dtype, (maps,))
        if bias is not None and not bias.is_compatible(wanted):
            raise ShapeError(f"{self.name}: the bias is {bias}; expected {wanted}.")

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, w = inputs[:2]
        bias = inputs[2] if len(inputs) > 2 else None
        assert x is not None and w is not None
        window = self.window(w.shape)
        assert window is not None
        wide = np.float64 if x.dtype.kind == "f" else x.dtype
        # [N, C, out …, window] to [N, G, positions, C/G * window]
        columns, _ = window.windows(x.astype(wide), 0)
        out, batch, maps = columns.shape[2:-1], x.shape[0], w.shape[0]
        per_group, positions = prod(w.shape[1:]), prod(out)
        grouped = columns.reshape(batch, self.group, w.shape[1], positions, prod(w.shape[2:]))
        matrix = np.moveaxis(grouped, 3, 2).reshape(batch, self.group, positions, per_group)
        weights = w.astype(wide).reshape(self.group, maps // self.group, per_group)
        result = (weights @ matrix.swapaxes(-1, -2)).reshape(batch, maps, *out)
        if bias is not None:
            result = result + bias.astype(wide).reshape(-1, *(1,) * len(out))
        return (result.astype(x.dtype),)

    def flops(self, inputs: Types, outputs: Types) -> int:
        w, y = need(inputs, 1, self).shape, need(outputs, 0, self).shape
        assert w is not None and y is not None
        return 2 * prod(int(d) for d in y) * prod(int(d) for d in w[1:])


@dataclass(frozen=True)
class FloatConvolution(Convolution, EpilogueOp):
    """Base class of float convolutions, whose kernels apply an epilogue."""

    num_fixed_inputs = 3
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            "depthwise_cpu",
            _emit_depthwise_cpu,
            _reject_depthwise_cpu,
            requires.CPU,
            DirectCpuEfficiency,
            direct_work,
        ),
        Variant(
            "depthwise_gpu",
            _emit_depthwise_gpu,
            _reject_depthwise_gpu,
            requires.GPU,
            DirectGpuEfficiency,
            direct_work,
        ),
        Variant(
            "depthwise_any",
            _emit_depthwise_any,
            _reject_depthwise,
            speed=DirectEfficiency,
            work=direct_work,
        ),
        *gemm_variants.variants(_emit, prefix="im2col_", work=unfolded_work, gpu=_GPU),
    )

    def with_epilogue(self, steps: tuple[ElementwiseInstruction, ...]) -> Op:
        attributes = {f.name: getattr(self, f.name) for f in fields(Convolution)}
        return FusedConv(**attributes, steps=steps)

    def supports_operand(self, extra: Shape | None, out: Shape | None) -> bool:
        return epilogue_operand_fits(extra, out)


@register
class Conv(FloatConvolution, HasScalableWeights):
    """Convolution: y[n, o] = bias[o] + the sum over channels c of x[n, c] correlated with w[o, c].

    The sum is over the input channels in the group of output channel o. Inputs: x, w, and
    optionally bias, one number per output channel.

    Numerics: as MatMul. Source: ONNX Conv, opset 1 to 22.
    """

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        x, w = node.arg(0), node.arg(1)
        sizes, kernel = known_shape(x)[2:], window_sizes(w)
        window = self.window(known_shape(w))
        numbers = [d for d in sizes if isinstance(d, int)]
        assert window is not None
        if len(numbers) < len(sizes) and self.auto_pad.startswith("SAME"):
            raise UnsupportedError(
                f"its padding ({self.auto_pad}) depends on the input; use fixed sizes"
            )
        begins, ends = window.padding(numbers if len(numbers) == len(sizes) else [0] * len(sizes))
        ones = (1,) * len(kernel)
        g = Geometry(
            kernel, self.strides or ones, self.dilations or ones, tuple(begins), tuple(ends),
            self.group,
        )  # fmt: skip
        by_x = data_gradient(b, cotangent, w, sizes, g)
        by_w = weight_gradient(b, x, cotangent, w, g)
        return [by_x, by_w, bias_gradient(b, cotangent)]

    def factors(self, scale: Array, weights: tuple[int, ...]) -> Array:
        return scale.reshape(-1, *(1,) * (len(weights) - 1))


@register
@dataclass(frozen=True)
class FusedConv(FloatConvolution):
    """Conv with the epilogue `steps` over its biased result (operand 0) and the extras (1, 2, …).

    Inputs: x, w, bias or None, then the extras, tensors that the steps read. The extras broadcast
    to the result and never widen it; `epilogue_operand_fits` tells which shapes the kernels
    support.

    Source: clrt.
    """

    steps: tuple[ElementwiseInstruction, ...] = ()

    domain = "clrt"
    # Epilogue operands may be overwritten, for the reason given at FusedMatMul.
    memory_traits = MemoryTraits(inplace_inputs=tuple(range(3, 64)))

    def program(self, inputs: Types) -> tuple[ElementwiseInstruction, ...]:
        extras = len([t for t in inputs[3:] if t is not None])
        return after_bias(self.steps, extras) if self._has_bias(inputs) else self.steps

    def extras(self, node: Node) -> list[Value]:
        return [v for v in node.inputs[3:] if v is not None]

    def infer(self, inputs: Types) -> list[TensorType]:
        extras = [t for t in inputs[3:] if t is not None]
        (y,) = super().infer(inputs[:3])
        return [fused_type(self, self.steps, y, extras)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (y,) = super().reference(*inputs[:3])
        return (fused_reference(self.steps, y, inputs[3:]),)

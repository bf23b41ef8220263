"""MaxPool and AveragePool with channels last."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, launch, pitched_args
from clrt.kernels.strided import axes
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant, reject_but_float32
from clrt.ops.base import Types
from clrt.ops.registry import register
from clrt.ops.vision.pooling import AveragePool, MaxPool, WindowPool

_AXES = 3
POOL_ROWS = tuned("pool_rows", {"T_VW": (4, 8, 16)}, T_VW=8)


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    count = len(node.arg(0).dims) - 2
    if count > _AXES:
        return f"{count} axes; the kernel walks up to {_AXES}"
    return reject_but_float32(node, caps)


def _launch(node: Node, size: tuple[int, ...], entry: str, vector: int) -> list[Launch]:
    x, y, op = node.arg(0), node.output, node.op_as(WindowPool)
    if 0 in y.dims:
        return []
    mean = isinstance(op, AveragePool)
    padded = isinstance(op, AveragePool) and op.count_include_pad
    local = None if vector == 1 else (1,) * len(size)
    macros = {"T_VW": vector, "MEAN": int(mean), "PADDED": int(padded)}
    kernel = KernelSpec.of("vision/pooling_last.cl", entry, **macros)
    _, after = op.padding(x.dims[1:-1])
    geometry = op.geometry(x.dims[1:-1], y.dims[1:-1])
    args = {
        **pitched_args("y", y, y.dims[-1]),
        **pitched_args("x", x, x.dims[-1]),
        "C": x.dims[-1],
        **geometry,
        **axes("end", after, 0, _AXES),
    }
    work = prod(y.dims) * prod(op.kernel_shape)
    return [launch(kernel, size, local, work, **args)]


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    vector = ctx.tunables(POOL_ROWS)["T_VW"]
    return _launch(node, (prod(node.output.dims[:-2]),), "pool_rows", vector)


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    dims = node.output.dims
    return _launch(node, (dims[-1], prod(dims[1:-1]), dims[0]), "pool_last", 1)


_VARIANTS = (
    Variant("rows", _emit_cpu, _reject, requires.CPU),
    Variant("any", _emit_any, _reject),
)


class _ChannelsLast(WindowPool):
    """Base of pooling ops over images with the channels as last axis."""

    variants: ClassVar[tuple[Variant, ...]] = _VARIANTS

    def infer(self, inputs: Types) -> list[TensorType]:
        x = inputs[0]
        if x is None or x.shape is None or len(x.shape) < 3:
            return super().infer(inputs)
        first = TensorType(x.dtype, (x.shape[0], x.shape[-1], *x.shape[1:-1]))
        (y,) = super().infer([first])
        assert y.shape is not None
        return [TensorType(y.dtype, (y.shape[0], *y.shape[2:], y.shape[1]))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        (y,) = super().reference(np.moveaxis(x, -1, 1))
        return (np.ascontiguousarray(np.moveaxis(y, 1, -1)),)


@register
class ChannelsLastMaxPool(_ChannelsLast, MaxPool):
    """Returns the maximum of each window of images with the channels last, without indices.

    Source: clrt.
    """

    domain = "clrt"


@register
class ChannelsLastAveragePool(_ChannelsLast, AveragePool):
    """Returns the mean of each window of images with the channels last. Source: clrt."""

    domain = "clrt"

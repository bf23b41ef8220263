"""Dropout: copies at inference; sets random elements to 0 in training mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, launch
from clrt.kernels.strided import contiguous_strides, copy_launches
from clrt.kernels.variant import Lowering, Variant, reject_float64
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import check_scalar, need
from clrt.ops.movement.common import fill_launch, num_elements
from clrt.ops.movement.views import Identity
from clrt.ops.random.philox import RandomOp, key_args, key_of, uniforms
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


def _copies(node: Node, caps: DeviceCaps) -> str | None:
    return None if node.input(2) is None else "it may train"


def _copy(node: Node, ctx: Lowering) -> list[Launch]:
    """Returns launches for inference: a copy of x, and a mask of ones."""
    x, y = node.arg(0), node.output
    elems = num_elements(y.dims)
    if not elems:
        return []
    strides = contiguous_strides(x.dims)
    launches = copy_launches(ctx, BufferArg(x), BufferArg(y), x.dtype, x.dims, strides, strides)
    launches += [
        fill_launch(BufferArg(mask), mask.dtype, elems, 1, ctx) for mask in node.outputs[1:]
    ]
    return launches


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    if node.input(2) is None:
        return "it never trains"
    return reject_float64(node, caps)


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, ratio, training = (node.arg(i) for i in range(3))
    kernel = KernelSpec.of(
        "random/dropout.cl",
        "dropout",
        DATA_T=x.dtype.cl,
        STORAGE=x.dtype.storage,
        REAL_T=x.dtype.compute,
        RATIO_T=ratio.dtype.cl,
        RATIO_STORAGE=ratio.dtype.storage,
        MASK=len(node.outputs) - 1,
    )
    elems = num_elements(x.dims)
    outputs = dict(zip(("y", "mask"), node.outputs, strict=False))
    inputs = dict(x=x, ratio=ratio, training=training)
    return [
        launch(kernel, (elems,), n=elems, **inputs, **outputs, **key_args(node.op_as(Dropout).key))
    ]


@register
@dataclass(frozen=True)
class Dropout(RandomOp):
    """Sets random elements of x to 0 and divides the others by 1 - ratio.

    Inputs: x, ratio (default 0.5), training_mode. Outputs: y, and a mask that is true for the
    elements kept. An element is kept if its uniform random number in [0, 1) is at least the ratio.
    If training_mode is omitted or false, y is x and all of the mask is true. A node without the
    mask output whose training_mode is omitted or a false constant is imported as Identity.

    Attributes:
        key: Random key.
        mask_like_x: Whether the mask has the dtype of x, as before opset 10, instead of bool.

    Source: ONNX Dropout, opset 7 to 22.
    """

    mask_like_x: bool = False

    supported_storages = None
    accuracy = Accuracy.ELEMENTWISE
    variants = (Variant("copy", _copy, _copies), Variant("philox", _emit, _reject))

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        mode = node.inputs[2] if len(node.inputs) > 2 else ""
        training = node.constants.get(mode)
        if not mode or (training is not None and not training.any()):
            del node.inputs[1:]
            if not any(node.outputs[1:]):
                return Identity()
            return cls(0, node.opset < 10)
        if not node.inputs[1]:
            node.set_input(1, np.array(0.5, np.float32))
        return cls(key_of(node))

    def is_random(self, inputs: Types) -> bool:
        training = inputs[2] if len(inputs) > 2 else None
        return training is not None and (training.numbers is None or bool(training.numbers.any()))

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        check_scalar(inputs, 1, self, "ratio")
        check_scalar(inputs, 2, self, "training_mode")
        if len(inputs) > 2 and inputs[2] is not None:
            ratio, training = need(inputs, 1, self), inputs[2]
            if training.dtype is not DType.BOOL or not ratio.dtype.is_float:
                raise ShapeError(
                    f"Dropout: ratio is {ratio} and training_mode {training}; expected a float "
                    "and a bool."
                )
        dtype = x.dtype if self.mask_like_x else DType.BOOL
        return [TensorType(x.dtype, x.shape), TensorType(dtype, x.shape)]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        cotangent = cotangents[0]
        if cotangent is None or len(node.inputs) < 3 or node.input(2) is None:
            return [cotangent]
        kept = node.outputs[1] if len(node.outputs) > 1 else b.add_all(self, *node.inputs)[1]
        ratio, training = (b.reshaped(node.arg(i)) for i in (1, 2))
        ratio = b.cast(ratio, cotangent.dtype)
        one, zero = (b.numbers(n, cotangent.dtype) for n in (1, 0))
        factor = b("Where", training, b("Div", one, b("Sub", one, ratio)), one)
        scaled = b("Mul", cotangent, factor)
        return [b("Where", b.cast(kept, DType.BOOL), scaled, zero)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, ratio, training = (*inputs, None, None)[:3]
        assert x is not None
        if training is None or not training.any():
            return x, np.ones(x.shape, x.dtype if self.mask_like_x else np.bool_)
        assert ratio is not None
        drop_rate = float(ratio.reshape(-1)[0])
        mask = uniforms(self.key, x.size).reshape(x.shape) >= np.float32(drop_rate)
        with np.errstate(all="ignore"):
            kept = x.astype(np.float64) / (1 - drop_rate)
        return np.where(mask, kept, 0).astype(x.dtype), mask

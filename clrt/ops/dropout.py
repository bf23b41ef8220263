"""Dropout: nothing, at inference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, Launch, Lowering, Variant
from clrt.kernels.strided import contiguous_strides, copy_launch
from clrt.ops.base import Accuracy, OnnxNode, Op, Sample, Types, need, register
from clrt.ops.movement import count, fill_launch
from clrt.ops.views import Identity


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x = node.arg(0)
    y, mask = node.outputs
    elems = count(y.dims)
    if not elems:
        return []
    own = contiguous_strides(x.dims)
    copy = copy_launch(BufferArg(x), BufferArg(y), x.dtype, x.dims, own, own)
    return [copy, fill_launch(BufferArg(mask), mask.dtype, elems, 1)]


@register
@dataclass(frozen=True)
class Dropout(Op):
    """y = x with a mask that is true everywhere; without the mask it imports as Identity.

    Source: ONNX Dropout, opset 7 to 22, in inference mode. The mask is of x's dtype before
    opset 10.
    """

    mask_like_x: bool = False

    accuracy = Accuracy.EXACT
    variants = (Variant("copy", _emit),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        mode = node.inputs[2] if len(node.inputs) > 2 else ""
        if mode:
            training = node.constants.get(mode)
            if training is None or training.any():
                known = "is computed" if training is None else "is true"
                raise UnsupportedError(
                    f"Dropout '{node.name}': training_mode {known}; clrt runs inference only."
                )
        del node.inputs[1:]
        if not any(node.outputs[1:]):
            return Identity()
        return cls(node.opset < 10)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        dtype = x.dtype if self.mask_like_x else DType.BOOL
        return [TensorType(x.dtype, x.shape), TensorType(dtype, x.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        return x, np.ones(x.shape, x.dtype if self.mask_like_x else np.bool_)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in [(), (65,), (2, 0)]:
            for old in (False, True):
                yield Sample(cls(old), (np.full(shape, 2.5, np.float32),))
                yield Sample(cls(old), (np.full(shape, 2.5, np.float16),))

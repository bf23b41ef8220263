"""Ops on sequences (lists of tensors) and optionals (values that may be absent), on the host."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from clrt.errors import InputError, ModelError, NumberError, ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.op import ContainerType, TensorType
from clrt.ir.runtime_values import RuntimeValue, sequence, tensor
from clrt.ops.base import HostContext, OnnxNode, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.control.host_driven import HostDriven, common_type, join, take
from clrt.ops.movement.common import fresh_dims
from clrt.ops.pointwise.cast import onnx_dtype
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass


def _element(inputs: Types, op: Op) -> TensorType:
    """Returns the element type of the sequence in input 0, which may be wrapped in an optional.

    Raises:
        ModelError: The input is not a sequence.
    """
    input_type = need(inputs, 0, op)
    if isinstance(input_type, ContainerType) and input_type.kind == "optional":
        input_type = input_type.element
    if not isinstance(input_type, ContainerType) or input_type.kind != "sequence":
        raise ModelError(f"{op.name}: its input is {input_type}; expected a sequence.")
    return input_type.element


def _position(index: int, size: int, op: Op, operand: int, behind: int = 0) -> int:
    """Returns an index into a list as a non-negative number.

    Args:
        index: Index; negative ones count from the end.
        size: Length of the list.
        op: Op, for messages.
        operand: Input that holds the index, for messages.
        behind: How far past the last element the index may be: 1 to allow appending.

    Raises:
        NumberError: The index is out of range.
    """
    if not -size <= index < size + behind:
        last = size + behind - 1
        allowed = f"allowed are {-size}..{last}" if size + behind else "the sequence is empty"
        raise NumberError(op.name, operand, "a position", index, allowed)
    return index + size if index < 0 else index


@register
class SequenceConstruct(HostDriven):
    """Builds a sequence of the inputs. Source: ONNX SequenceConstruct, opset 11."""

    def infer(self, inputs: Types) -> list[TensorType]:
        need(inputs, 0, self)
        return [ContainerType.sequence(common_type([t for t in inputs if t is not None], inputs))]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        return [list(inputs)]


@register
@dataclass(frozen=True)
class SequenceEmpty(HostDriven):
    """Returns an empty sequence of tensors of a dtype. Source: ONNX SequenceEmpty, opset 11."""

    dtype: DType = DType.FLOAT32

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        return cls(onnx_dtype(node.attrs.get("dtype", 1), "SequenceEmpty"))

    def infer(self, inputs: Types) -> list[TensorType]:
        return [ContainerType.sequence(TensorType(self.dtype, None))]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        return [[]]


@register
class SequenceInsert(HostDriven):
    """Returns a sequence with a tensor inserted at a position, by default at the end.

    Inputs: sequence, tensor, and optionally the position; negative ones count from the end.

    Source: ONNX SequenceInsert, opset 11.
    """

    input_traits = InputTraits(plan_time=(2,))

    def infer(self, inputs: Types) -> list[TensorType]:
        element, tensor = _element(inputs, self), need(inputs, 1, self)
        if element.dtype is not tensor.dtype:
            raise ShapeError(f"SequenceInsert: {tensor} into a sequence of {element}.")
        return [ContainerType.sequence(common_type([element, tensor], inputs))]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        tensors, new, *rest = sequence(inputs[0]), *inputs[1:]
        size = len(tensors)
        index = host.read(rest[0]).item() if rest and rest[0] is not None else size
        at = _position(index, size, self, 2, behind=1)
        return [[*tensors[:at], new, *tensors[at:]]]


@register
class SequenceErase(HostDriven):
    """Removes a tensor from a sequence, the last one by default.

    Inputs: sequence, and optionally the position; negative ones count from the end.

    Source: ONNX SequenceErase, opset 11.
    """

    input_traits = InputTraits(plan_time=(1,))

    def infer(self, inputs: Types) -> list[TensorType]:
        return [ContainerType.sequence(_element(inputs, self))]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        tensors, *rest = sequence(inputs[0]), *inputs[1:]
        index = host.read(rest[0]).item() if rest and rest[0] is not None else -1
        at = _position(index, len(tensors), self, 1)
        return [[*tensors[:at], *tensors[at + 1 :]]]


@register
class SequenceAt(HostDriven):
    """Returns the tensor of a sequence at a position. Source: ONNX SequenceAt, opset 11."""

    input_traits = InputTraits(plan_time=(1,))

    def infer(self, inputs: Types) -> list[TensorType]:
        need(inputs, 1, self)
        # The tensors of a sequence share a type, but their dims may differ.
        return [common_type([_element(inputs, self)], ())]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        tensors, index = sequence(inputs[0]), inputs[1]
        return [tensors[_position(host.read(index).item(), len(tensors), self, 1)]]


@register
class SequenceLength(HostDriven):
    """Returns the number of tensors in a sequence, int64. Source: ONNX SequenceLength, opset 11."""

    def infer(self, inputs: Types) -> list[TensorType]:
        _element(inputs, self)
        return [TensorType(DType.INT64, ())]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        return [np.asarray(len(sequence(inputs[0])), np.int64)]


@register
@dataclass(frozen=True)
class SplitToSequence(HostDriven):
    """Splits a tensor along an axis into a sequence of tensors.

    Optional input 1 holds the size of each part along the axis; a scalar is the size of all parts
    but the last, which may be smaller. Without input 1 all sizes are 1, and the parts keep the axis
    if `keepdims` is true.

    Source: ONNX SplitToSequence, opset 11 to 24.
    """

    axis: int = 0
    keepdims: bool = True

    input_traits = InputTraits(plan_time=(1,))

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [ContainerType.sequence(TensorType(x.dtype, None))]
        axis = normalize_axis(self.axis, len(x.shape), self)
        single = len(inputs) < 2 or inputs[1] is None
        part_dims = (1,) if single and self.keepdims else () if single else fresh_dims(1)
        dims = (*x.shape[:axis], *part_dims, *x.shape[axis + 1 :])
        return [ContainerType.sequence(TensorType(x.dtype, dims))]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        x, *rest = tensor(inputs[0]), *inputs[1:]
        axis = normalize_axis(self.axis, len(x.shape), self)
        n = x.shape[axis]
        if not rest or rest[0] is None:
            if self.keepdims:
                return [[take(x, axis, range(i, i + 1), host) for i in range(n)]]
            return [[take(x, axis, i, host) for i in range(n)]]
        split = host.read(rest[0])
        if np.any(split < (0 if split.ndim else 1)):
            raise ShapeError(f"SplitToSequence: sizes {split.tolist()} are not valid.")
        ends = [0, *np.cumsum(split).tolist()] if split.ndim else [*range(0, n, int(split)), n]
        if ends[-1] != n:
            raise ShapeError(f"SplitToSequence: sizes {split.tolist()} do not add up to {n}.")
        return [[take(x, axis, range(a, b), host) for a, b in pairwise(ends)]]


@register
@dataclass(frozen=True)
class ConcatFromSequence(HostDriven):
    """Concatenates the tensors of a sequence along `axis`, or stacks them if `new_axis` is set.

    Source: ONNX ConcatFromSequence, opset 11.
    """

    axis: int = 0
    new_axis: bool = False

    def infer(self, inputs: Types) -> list[TensorType]:
        element = _element(inputs, self)
        rank = None if element.shape is None else len(element.shape) + self.new_axis
        return [TensorType(element.dtype, None if rank is None else fresh_dims(rank))]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        tensors = sequence(inputs[0])
        if not tensors:
            raise InputError("ConcatFromSequence: the sequence is empty.")
        return [join(tensors, self.axis, self.new_axis, host)]


@register
@dataclass(frozen=True)
class Optional(HostDriven):
    """Wraps the input in an optional; without input, the optional is empty.

    Attributes:
        type: Type of the value if there is no input; else None.

    Source: ONNX Optional, opset 15.
    """

    type: TensorType | None = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        return cls(node.attrs.get("type"))

    def infer(self, inputs: Types) -> list[TensorType]:
        inside = inputs[0] if inputs and inputs[0] is not None else self.type
        if inside is None:
            raise ModelError("Optional: it has neither an input nor a type.")
        return [ContainerType.optional(inside)]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        return [inputs[0] if inputs else None]


@register
class OptionalHasElement(HostDriven):
    """Returns whether an optional holds a value; false if the input is omitted.

    Source: ONNX OptionalHasElement, opset 15 to 18.
    """

    def infer(self, inputs: Types) -> list[TensorType]:
        return [TensorType(DType.BOOL, ())]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        return [np.asarray(bool(inputs) and inputs[0] is not None)]


@register
class OptionalGetElement(HostDriven):
    """Returns the value of an optional. Source: ONNX OptionalGetElement, opset 15 to 18."""

    def infer(self, inputs: Types) -> list[TensorType]:
        input_type = need(inputs, 0, self)
        optional = isinstance(input_type, ContainerType) and input_type.kind == "optional"
        return [
            input_type.element if optional and isinstance(input_type, ContainerType) else input_type
        ]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        if inputs[0] is None:
            raise InputError("OptionalGetElement: the optional is empty.")
        return [inputs[0]]

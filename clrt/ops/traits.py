"""Traits of ops in groups, each a frozen record: an op states only the groups that it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class OnnxTraits:
    """Traits that relate an op to its ONNX schema.

    Attributes:
        attribute_to_input: Attributes of older opsets that became inputs: name to
            (input index, dtype). The importer turns them into constants.
        non_attribute_fields: Fields that the node's inputs and outputs imply; they are not
            exported as ONNX attributes.
        since_version: First opset in which the ONNX op means what the class implements; the op
            cannot be exported to older opsets. 0 if the meaning never changed.
    """

    attribute_to_input: Mapping[str, tuple[int, Any]] = field(default_factory=dict)
    non_attribute_fields: frozenset[str] = frozenset()
    since_version: int = 0


@dataclass(frozen=True)
class InputTraits:
    """Requirements of an op on its inputs; each field lists indices of inputs.

    Attributes:
        required: Inputs that must be present, although `infer` does not read them.
        index: Integer inputs that kernels use as indices or lengths.
        plan_time: Inputs whose elements must be known at planning (shapes, axes).
        host_driven: Subset of `plan_time`. If one depends on computed data, the node becomes
            host-driven, so that the plan of the suffix is shared by all values that give the same
            output shapes.
        same_dtype: Groups of inputs that must share one dtype, because kernels declare one type for
            the group.
        half_storage: Inputs that kernels read directly in float16 or bfloat16 if input 0 is
            float32; an output in float16 or bfloat16 reuses the memory of one of these inputs.
    """

    required: tuple[int, ...] = ()
    index: tuple[int, ...] = ()
    plan_time: tuple[int, ...] = ()
    host_driven: tuple[int, ...] = ()
    same_dtype: tuple[tuple[int, ...], ...] = ()
    half_storage: tuple[int, ...] = ()


@dataclass(frozen=True)
class MemoryTraits:
    """Traits that say which memory an op reads, writes and may reuse.

    Attributes:
        always_view: Whether the only output is input 0 with another shape; no kernel runs.
        is_data_movement: Whether each output element is an element of input 0, perhaps cast.
        partially_read_input: Index of an input that launches read only in part: at most as many
            bytes as they write. None if there is no such input.
        partially_writes_output: Whether launches each write only a part of the output: at most as
            many bytes as they read.
        inplace_inputs: Inputs whose memory the first output may reuse (same size and element
            order).
    """

    always_view: bool = False
    is_data_movement: bool = False
    partially_read_input: int | None = None
    partially_writes_output: bool = False
    inplace_inputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class HostTraits:
    """Traits that say which part of an op the host computes.

    Attributes:
        host_driven: Whether the host runs the node between plans, and itself computes nothing on
            tensors: control flow, sequences and maps.
        evaluates_dims: Whether `reference` also accepts object arrays of dims (shape arithmetic).
        has_slow_reference: Whether the reference loops in Python, so that the constant folder skips
            large inputs and leaves the node to the device or to the run.
        loop_carried_offsets: Indices of the first loop-carried input and output of the subgraph.
            From there on, each output is the input of the next iteration, in which its shape may
            differ. None if there are no loop-carried values.
    """

    host_driven: bool = False
    evaluates_dims: bool = False
    has_slow_reference: bool = False
    loop_carried_offsets: tuple[int, int] | None = None

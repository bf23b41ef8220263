"""Ops on maps: dicts of scalars on the host, as used by classifiers and vectorizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from clrt.errors import InputError, ModelError, ShapeError
from clrt.ir.dims import provably_different
from clrt.ir.dtypes import DType
from clrt.ir.op import ContainerType, TensorType
from clrt.ir.runtime_values import RuntimeValue, mapping
from clrt.ops.base import HostContext, OnnxNode, Op, Types
from clrt.ops.checks import need
from clrt.ops.control.host_driven import HostDriven
from clrt.ops.movement.common import fresh_dim
from clrt.ops.pointwise.cast import Cast
from clrt.ops.registry import register
from clrt.ops.traits import OnnxTraits
from clrt.util.fast_dataclass import dataclass

_CASTS = {"TO_FLOAT": DType.FLOAT32, "TO_INT64": DType.INT64, "TO_STRING": DType.STRING}


def _map(inputs: Types, op: Op) -> tuple[DType, DType]:
    """Returns the key dtype and the value dtype of the map in input 0.

    Raises:
        ModelError: The input is not a map.
    """
    input_type = need(inputs, 0, op)
    if not isinstance(input_type, ContainerType) or input_type.key is None:
        raise ModelError(f"{op.name}: its input is {input_type}; expected a map.")
    return input_type.key, input_type.dtype


def _check_one(op: Op, *names: str) -> None:
    """Checks that exactly one of an op's list attributes `names` is set.

    Raises:
        ModelError: None or several are set.
    """
    if sum(bool(getattr(op, n)) for n in names) != 1:
        raise ModelError(f"{op.name}: expected exactly one of {' and '.join(names)}.")


@register
@dataclass(frozen=True)
class ZipMap(HostDriven):
    """Converts scores to a sequence with one map per row, from class label to score.

    Input: float32 `[rows, classes]`, or `[classes]` for one row. If labels repeat, the last one
    counts.

    Attributes:
        classlabels_int64s: Label of each class; () if labels are strings.
        classlabels_strings: Label of each class; () if labels are integers.

    Source: ONNX ai.onnx.ml ZipMap, opset 1.
    """

    classlabels_int64s: tuple[int, ...] = ()
    classlabels_strings: tuple[str, ...] = ()

    domain = "ai.onnx.ml"

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        op = super().from_onnx(node)
        _check_one(op, "classlabels_int64s", "classlabels_strings")
        return op

    @property
    def _labels(self) -> tuple[int, ...] | tuple[str, ...]:
        return self.classlabels_int64s or self.classlabels_strings

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        wanted = f"expected float32 [N,{len(self._labels)}], as there are labels"
        if x.dtype is not DType.FLOAT32:
            raise ShapeError(f"ZipMap: its input is {x}; {wanted}.")
        if x.shape is not None:
            fits = len(x.shape) in (1, 2) and not provably_different(x.shape[-1], len(self._labels))
            if not fits:
                raise ShapeError(f"ZipMap: its input is {x}; {wanted}.")
        key = DType.INT64 if self.classlabels_int64s else DType.STRING
        return [ContainerType.sequence(ContainerType.map(key, x.dtype))]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        x = host.read(inputs[0])
        self.infer([TensorType(DType.of(x.dtype), x.shape)])
        # The keys ascend, as in ONNX Runtime.
        columns = dict(sorted(zip(self._labels, range(len(self._labels)), strict=True)))
        rows = x.reshape(-1, x.shape[-1])[:, list(columns.values())].tolist()
        return [[dict(zip(columns, row, strict=True)) for row in rows]]


@register
@dataclass(frozen=True)
class CastMap(HostDriven):
    """Converts a map with int64 keys to a tensor `[1, C]` of its values, cast to `cast_to`.

    Attributes:
        cast_to: Dtype of the result.
        map_form: "DENSE" packs the values in key order; C is their number. "SPARSE" writes each
            value at the column of its key; C is `max_map`, larger keys are dropped, negative keys
            are an error, and missing keys give 0 (as a string "0.f").
        max_map: Number of columns for "SPARSE".

    Source: ONNX ai.onnx.ml CastMap, opset 1.
    """

    cast_to: Literal["TO_FLOAT", "TO_INT64", "TO_STRING"] = "TO_FLOAT"
    map_form: Literal["DENSE", "SPARSE"] = "DENSE"
    max_map: int = 1

    domain = "ai.onnx.ml"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.map_form == "SPARSE" and self.max_map < 1:
            raise ModelError(f"CastMap: max_map {self.max_map}; expected 1 or more.")

    def infer(self, inputs: Types) -> list[TensorType]:
        key, _ = _map(inputs, self)
        if key is not DType.INT64:
            raise ModelError(f"CastMap: its input is {inputs[0]}; expected keys of int64.")
        width = self.max_map if self.map_form == "SPARSE" else fresh_dim()
        return [TensorType(_CASTS[self.cast_to], (1, width))]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        entries = mapping(inputs[0])
        if self.map_form == "DENSE":
            return [np.array([self._cast([entries[k] for k in sorted(entries)])])]
        negative = [k for k in entries if k < 0]
        if negative:
            raise InputError(f"CastMap: the map has the key {negative[0]}; SPARSE needs keys >= 0.")
        in_range = {k: v for k, v in entries.items() if k < self.max_map}
        cast = dict(zip(in_range, self._cast(list(in_range.values())), strict=True))
        # ONNX Runtime's string for a missing value.
        default = "0.f" if self.cast_to == "TO_STRING" else 0
        row = [cast.get(k, default) for k in range(self.max_map)]
        return [np.array([row], _CASTS[self.cast_to].numpy)]

    def _cast(self, values: list[Any]) -> Any:
        """Casts a list of map values to `cast_to`; returns a list or array."""
        to = _CASTS[self.cast_to]
        if to is DType.STRING:
            # C's number format ("%f"), which differs from that of Cast.
            return np.array([v if isinstance(v, str) else f"{v:f}" for v in values], to.numpy)
        (cast,) = Cast(to).reference(np.array(values))
        return cast


@register
@dataclass(frozen=True)
class DictVectorizer(HostDriven):
    """Converts a map to a tensor `[1, keys]`: the value of each key of a vocabulary.

    Keys that the map lacks give 0 or "".

    Attributes:
        string_vocabulary: Keys, in output order; () if the keys are integers.
        int64_vocabulary: Keys, in output order; () if the keys are strings.
        dtype: Dtype of the values.

    Source: ONNX ai.onnx.ml DictVectorizer, opset 1.
    """

    string_vocabulary: tuple[str, ...] = ()
    int64_vocabulary: tuple[int, ...] = ()
    dtype: DType = DType.FLOAT32

    domain = "ai.onnx.ml"
    onnx_traits = OnnxTraits(non_attribute_fields=frozenset({"dtype"}))

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        node.attrs["dtype"] = node.types[node.inputs[0]].dtype
        op = super().from_onnx(node)
        _check_one(op, "string_vocabulary", "int64_vocabulary")
        return op

    def infer(self, inputs: Types) -> list[TensorType]:
        key, dtype = _map(inputs, self)
        wanted = DType.STRING if self.string_vocabulary else DType.INT64
        if key is not wanted:
            raise ModelError(f"DictVectorizer: its input is {inputs[0]}; the vocabulary {wanted}.")
        return [TensorType(dtype, (1, len(self.string_vocabulary or self.int64_vocabulary)))]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        entries = mapping(inputs[0])
        default = "" if self.dtype is DType.STRING else 0
        row = [entries.get(k, default) for k in self.string_vocabulary or self.int64_vocabulary]
        return [np.array([row], self.dtype.numpy)]

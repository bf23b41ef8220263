"""ONNX's backend suite: its cases, and one of them run on a device."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase

import clrt
from clrt.errors import ClrtError, HostFallbackWarning
from clrt.runtime.opencl.devices import DeviceInfo
from tests.onnx_suite import cases_of

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")

# ONNX's own, but for float16: the suite gives it the tolerances of float32.
_FLOAT16_TOLERANCE = 2e-3


@dataclass(frozen=True)
class Outcome:
    """Result of a case.

    Attributes:
        reason: Why the case fails; empty if it passes.
        host_nodes: Nodes computed on the host, as counted by the model.
    """

    reason: str
    host_nodes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.reason


@cache
def cases() -> dict[str, TestCase]:
    """Returns the cases of the suite by name."""
    return {case.name: case for kind in KINDS for case in cases_of(kind)}


def model_of(case: TestCase) -> onnx.ModelProto:
    """Returns the model of a case, loaded from the onnx package if stored in a file."""
    if case.model is not None:
        return case.model
    return onnx.load(Path(case.model_dir) / "model.onnx")


def run_case(case: TestCase, device: DeviceInfo) -> Outcome:
    """Loads the model, runs every data set, and compares every output."""
    proto = model_of(case)
    names = [info.name for info in proto.graph.input]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HostFallbackWarning)
            model = clrt.load(proto.SerializeToString(), device=device.index)
            for inputs, expected in _data_sets(case, proto):
                inputs, expected = map(_array, inputs), list(map(_array, expected))
                results = model.run(dict(zip(names, inputs, strict=False)))
                for name, wanted in zip(
                    [o.name for o in proto.graph.output], expected, strict=True
                ):
                    _compare(results[name], wanted, name, case)
        host_nodes = tuple(model.host_nodes)
        model.close()
        return Outcome("", host_nodes)
    except ClrtError as error:
        return Outcome(f"{type(error).__name__}: {error}")
    except AssertionError as error:
        return Outcome(" ".join(str(error).split()) or "differs")


def dtypes_of(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Returns the dtypes of inputs and outputs, including elements of sequences and optionals."""
    found = [_innermost(i.type) for i in (*proto.graph.input, *proto.graph.output)]
    return tuple(dict.fromkeys(onnx.TensorProto.DataType.Name(t).lower() for t in found))


def is_numeric(proto: onnx.ModelProto) -> bool:
    """Returns whether all values are numeric tensors: no strings, sequences, optionals."""
    infos = (*proto.graph.input, *proto.graph.output)
    tensors = all(i.type.WhichOneof("value") == "tensor_type" for i in infos)
    return tensors and "string" not in dtypes_of(proto)


def _innermost(proto: onnx.TypeProto) -> int:
    kind = proto.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _innermost(getattr(proto, kind).elem_type)
    return int(proto.tensor_type.elem_type)


def _data_sets(case: TestCase, proto: onnx.ModelProto) -> list[tuple[Sequence[Any], Sequence[Any]]]:
    if case.data_sets is not None:
        return list(case.data_sets)
    folders = sorted(Path(case.model_dir).glob("test_data_set_*"))
    return [
        (_stored(f, "input", proto.graph.input), _stored(f, "output", proto.graph.output))
        for f in folders
    ]


def _array(value: Any) -> Any:
    """Returns a value as an array; the suite stores some dtypes as TensorProto."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _stored(folder: Path, kind: str, infos: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    """Reads the values of a folder, by the types of the model."""
    count = len(list(folder.glob(f"{kind}_*.pb")))
    values = []
    for index, info in zip(range(count), infos, strict=False):
        data = (folder / f"{kind}_{index}.pb").read_bytes()
        match info.type.WhichOneof("value"):
            case "sequence_type":
                values.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
            case "optional_type":
                values.append(numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
            case _:
                values.append(numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return values


def _compare(found: Any, wanted: Any, name: str, case: TestCase) -> None:
    """Raises AssertionError if a result differs from the suite's."""
    if wanted is None or isinstance(wanted, (list, tuple)):
        assert type(found) is type(wanted) or isinstance(found, list), f"'{name}' is {found!r}"
        for a, b in zip(found or (), wanted or (), strict=True):
            _compare(a, b, name, case)
        return
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape, f"'{name}' is {found.shape}; expected {wanted.shape}"
    if wanted.dtype.kind in "OUS":
        np.testing.assert_array_equal(found.astype(str), wanted.astype(str))
        return
    assert found.dtype == wanted.dtype, f"'{name}' is {found.dtype}; expected {wanted.dtype}"
    half = wanted.dtype == np.float16
    rtol = _FLOAT16_TOLERANCE if half else case.rtol
    atol = _FLOAT16_TOLERANCE if half else case.atol
    if wanted.dtype.kind == "V" or wanted.dtype.name not in np.sctypeDict:
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)  # ml_dtypes
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


__all__ = ["KINDS", "Outcome", "cases", "dtypes_of", "is_numeric", "model_of", "run_case"]

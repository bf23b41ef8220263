"""Turns intermediate values of an ONNX model into outputs, for comparison."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx

from clrt.errors import ModelError


def node_outputs(source: Path | bytes) -> set[str]:
    """Returns the names of all values that nodes of an ONNX model compute, except in subgraphs.

    Args:
        source: A file, or its bytes.

    Raises:
        ModelError: The file cannot be read.
    """
    return {name for node in _read(source).graph.node for name in node.output if name}


def with_outputs(source: Path | bytes, names: Iterable[str]) -> bytes:
    """Returns a serialized ONNX model with intermediate values added to its outputs.

    External data stay external.

    Args:
        source: A file, or its bytes.
        names: Names of the values; present outputs are not added twice.

    Raises:
        ModelError: The file cannot be read.
    """
    model = _read(source)
    present = {o.name for o in model.graph.output}
    for name in dict.fromkeys(names):
        if name not in present:
            model.graph.output.add(name=name)
    return bytes(model.SerializeToString())


def _read(source: Path | bytes) -> onnx.ModelProto:
    """Reads an ONNX model without its external data.

    Args:
        source: A file, or its bytes.

    Raises:
        ModelError: The model cannot be read.
    """
    try:
        if isinstance(source, bytes):
            return onnx.load_model_from_string(source)
        return onnx.load_model(source, load_external_data=False)
    except Exception as error:  # protobuf and the file system raise many types
        where = "The model" if isinstance(source, bytes) else f"'{source}'"
        raise ModelError(f"{where} cannot be read as ONNX: {error}.") from error

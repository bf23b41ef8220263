"""Exports a model to ONNX for other runtimes."""

from __future__ import annotations

from pathlib import Path

from clrt.errors import explain_missing_extra
from clrt.models.sources import is_compiled, onnx_file, read_graph


def onnx_model(source: str | Path) -> Path | bytes:
    """Returns a model in ONNX form, for other runtimes.

    Args:
        source: A file or folder.

    Returns:
        Path of the model's ONNX file; if it has none, the bytes of its graph exported to ONNX.

    Raises:
        ModelError, UnsupportedError: The model has no ONNX file, and cannot be read or exported.
    """
    file = None if is_compiled(source) else onnx_file(source)
    if file is not None:
        return file
    with explain_missing_extra("Export to ONNX"):
        from clrt.models.onnx.export.exporter import export_model

    return bytes(export_model(read_graph(source)).SerializeToString())

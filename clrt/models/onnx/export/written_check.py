"""Checks written ONNX files with ONNX's checker and, if installed, ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import onnx

from clrt.errors import UnsupportedError


def check_written(path: Path, name: Path) -> None:
    """Checks that other runtimes load an ONNX file that clrt wrote.

    Kernels that ONNX Runtime lacks are ignored: the file is still valid ONNX.

    Args:
        path: The file, with its external data beside it.
        name: Name of the file in messages.

    Raises:
        UnsupportedError: The file is not valid ONNX, or ONNX Runtime does not load it.
    """
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # also of protobuf
        raise _refused(name, "ONNX's checker", error) from error
    try:
        import onnxruntime
        from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel
    except ImportError:
        return
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except NoKernel:
        return
    except Exception as error:  # its exceptions have no common base
        raise _refused(name, f"ONNX Runtime {onnxruntime.__version__}", error) from error


def _refused(name: Path, by: str, error: Exception) -> UnsupportedError:
    reason = " ".join(str(error).split())[:300]
    return UnsupportedError(
        f"'{name}' is not written: {by} refuses it ({reason}); convert to a compiled model, or "
        "use other options."
    )

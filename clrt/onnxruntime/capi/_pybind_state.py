"""Alias of `onnxruntime_pybind11_state`."""

from clrt.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403

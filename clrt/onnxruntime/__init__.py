"""clrt in the place of ONNX Runtime: `import clrt.onnxruntime as ort`.

`install` puts it under the name `onnxruntime`, for programs that cannot be edited;
`python -m clrt.onnxruntime PROGRAM …` runs one so.
"""

from __future__ import annotations

from typing import NoReturn

from clrt.onnxruntime import capi
from clrt.onnxruntime.binding import IOBinding
from clrt.onnxruntime.capi import onnxruntime_pybind11_state
from clrt.onnxruntime.environment import (
    VERSION,
    create_and_register_allocator,
    disable_telemetry_events,
    enable_telemetry_events,
    get_build_info,
    get_version_string,
    has_collective_ops,
    preload_dlls,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
)
from clrt.onnxruntime.memory import OrtAllocatorType, OrtArenaCfg, OrtMemoryInfo, OrtMemType
from clrt.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from clrt.onnxruntime.providers import get_all_providers, get_available_providers, get_device
from clrt.onnxruntime.replacement import install
from clrt.onnxruntime.session import InferenceSession
from clrt.onnxruntime.types import ModelMetadata, NodeArg
from clrt.onnxruntime.values import OrtDevice, OrtDeviceVendorId, OrtValue, SparseTensor

__version__ = version = VERSION
package_name = "onnxruntime"
cuda_version = ""

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "SparseTensor",
    "capi",
    "create_and_register_allocator",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "install",
    "onnxruntime_pybind11_state",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
]


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"clrt.onnxruntime has no {name}: it has what programs load and run models with. "
        "Install onnxruntime for the rest."
    )

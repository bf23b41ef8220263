"""clrt with the interface of ONNX Runtime: `import clrt.onnxruntime as ort`.

For programs that cannot be edited, `install` registers this package under the name `onnxruntime`;
`python -m clrt.onnxruntime PROGRAM …` registers it and runs a program.
"""

from __future__ import annotations

from typing import NoReturn

from clrt.onnxruntime import capi
from clrt.onnxruntime.binding import IOBinding
from clrt.onnxruntime.capi import onnxruntime_pybind11_state
from clrt.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403
from clrt.onnxruntime.environment import VERSION, preload_dlls
from clrt.onnxruntime.replacement import install
from clrt.onnxruntime.session import InferenceSession
from clrt.onnxruntime.values import OrtDeviceVendorId

__version__ = version = VERSION
package_name = "onnxruntime"
cuda_version = ""

__all__ = [
    "IOBinding",
    "InferenceSession",
    "OrtDeviceVendorId",
    "capi",
    "install",
    "preload_dlls",
]
__all__ += onnxruntime_pybind11_state.__all__


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"clrt.onnxruntime has no {name}: it provides the API to load and run models; install "
        "onnxruntime for the rest."
    )

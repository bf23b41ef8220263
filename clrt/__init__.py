"""clrt: an OpenCL-portable inference runtime with a graph compiler.

out = clrt.load("model.onnx").run({"input_ids": ids, "attention_mask": mask})
vectors = clrt.SentenceEncoder("all-MiniLM-L6-v2").encode(["Hello, world!"])
"""

__version__ = "0.1.0"

from clrt.errors import (
    ClrtError,
    DeviceError,
    HostFallbackWarning,
    InputError,
    KernelBuildError,
    ModelError,
    OutOfMemoryError,
    PassError,
    PlanError,
    ShapeError,
    UnsupportedError,
)
from clrt.model import Model, load
from clrt.runtime.devices import DeviceInfo, devices
from clrt.runtime.session import DeviceTensor
from clrt.signature import TensorSpec
from clrt.text.sentence_encoder import SentenceEncoder

__all__ = [
    "ClrtError",
    "DeviceError",
    "DeviceInfo",
    "DeviceTensor",
    "HostFallbackWarning",
    "InputError",
    "KernelBuildError",
    "Model",
    "ModelError",
    "OutOfMemoryError",
    "PassError",
    "PlanError",
    "SentenceEncoder",
    "ShapeError",
    "TensorSpec",
    "UnsupportedError",
    "devices",
    "load",
]

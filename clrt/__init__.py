"""clrt: an OpenCL-portable inference runtime with a graph compiler.

out = clrt.load("model.onnx").run({"input_ids": ids, "attention_mask": mask})
vectors = clrt.SentenceEncoder("all-MiniLM-L6-v2").encode(["Hello, world!"])
answer = clrt.TextGenerator("SmolLM2-135M-Instruct").chat().send("Hello!")
text = clrt.Transcriber("whisper-tiny")("speech.wav")
"""

__version__ = "0.1.0"

from typing import TYPE_CHECKING

from clrt.errors import (
    CancelledError,
    ClrtError,
    DeviceError,
    HostFallbackWarning,
    InputError,
    KernelBuildError,
    ModelError,
    OutOfMemoryError,
    PassError,
    PlanError,
    RunTimeoutError,
    ShapeError,
    UnsupportedError,
    explain_missing_extra,
)
from clrt.util.gc_control import import_module
from clrt.util.moved import find_moved

if TYPE_CHECKING:
    from clrt.audio.transcriber import Transcriber
    from clrt.generation.chat import Chat
    from clrt.generation.options import Sampling
    from clrt.generation.result import GeneratedText
    from clrt.generation.text_generator import TextGenerator
    from clrt.runtime.execution.run import Run
    from clrt.runtime.execution.signature import TensorSpec
    from clrt.runtime.execution.state import State
    from clrt.runtime.model.grad import grad
    from clrt.runtime.model.model import Model, load
    from clrt.runtime.opencl.devices import DeviceInfo, devices
    from clrt.runtime.opencl.memory_budget import set_memory_budget
    from clrt.runtime.opencl.tensor_factory import from_dlpack, tensor
    from clrt.runtime.opencl.tensors import DeviceTensor
    from clrt.text.cross_encoder import CrossEncoder
    from clrt.text.sentence_encoder import SentenceEncoder
    from clrt.text.sparse_encoder import SparseEncoder
    from clrt.text.sparse_vectors import SparseVectors
    from clrt.tools.device_choice import DeviceChoice, pick_device

__all__ = [
    "CancelledError",
    "Chat",
    "ClrtError",
    "CrossEncoder",
    "DeviceChoice",
    "DeviceError",
    "DeviceInfo",
    "DeviceTensor",
    "GeneratedText",
    "HostFallbackWarning",
    "InputError",
    "KernelBuildError",
    "Model",
    "ModelError",
    "OutOfMemoryError",
    "PassError",
    "PlanError",
    "Run",
    "RunTimeoutError",
    "Sampling",
    "SentenceEncoder",
    "ShapeError",
    "SparseEncoder",
    "SparseVectors",
    "State",
    "TensorSpec",
    "TextGenerator",
    "Transcriber",
    "UnsupportedError",
    "devices",
    "from_dlpack",
    "grad",
    "load",
    "pick_device",
    "set_memory_budget",
    "tensor",
]

# Modules of the public names, imported at first access so that `import clrt` stays fast.
_HOMES = {
    "Chat": "clrt.generation.chat",
    "CrossEncoder": "clrt.text.cross_encoder",
    "DeviceChoice": "clrt.tools.device_choice",
    "DeviceInfo": "clrt.runtime.opencl.devices",
    "DeviceTensor": "clrt.runtime.opencl.tensors",
    "GeneratedText": "clrt.generation.result",
    "Model": "clrt.runtime.model.model",
    "Run": "clrt.runtime.execution.run",
    "Sampling": "clrt.generation.options",
    "SentenceEncoder": "clrt.text.sentence_encoder",
    "SparseEncoder": "clrt.text.sparse_encoder",
    "SparseVectors": "clrt.text.sparse_vectors",
    "State": "clrt.runtime.execution.state",
    "TensorSpec": "clrt.runtime.execution.signature",
    "TextGenerator": "clrt.generation.text_generator",
    "Transcriber": "clrt.audio.transcriber",
    "devices": "clrt.runtime.opencl.devices",
    "from_dlpack": "clrt.runtime.opencl.tensor_factory",
    "grad": "clrt.runtime.model.grad",
    "load": "clrt.runtime.model.model",
    "pick_device": "clrt.tools.device_choice",
    "set_memory_budget": "clrt.runtime.opencl.memory_budget",
    "tensor": "clrt.runtime.opencl.tensor_factory",
}
# Names whose first access starts to load the drivers, since most users then load a model.
_LOADERS = (
    "CrossEncoder",
    "SentenceEncoder",
    "SparseEncoder",
    "TextGenerator",
    "Transcriber",
    "grad",
    "load",
)

find_moved()


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'clrt' has no attribute '{name}'")
    with explain_missing_extra(f"clrt.{name}"):
        if name in _LOADERS:
            import_module("clrt.runtime.opencl.driver_libraries").map_ahead()
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

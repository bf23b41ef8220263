"""Sessions, bindings and values, under the module name that ONNX Runtime has for them."""

from clrt.onnxruntime.binding import IOBinding
from clrt.onnxruntime.session import InferenceSession
from clrt.onnxruntime.values import OrtDevice, OrtDeviceVendorId, OrtValue, SparseTensor

Session = InferenceSession

__all__ = [
    "IOBinding",
    "InferenceSession",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "Session",
    "SparseTensor",
]

"""Element types: ONNX's names, NumPy's storage, OpenCL C's spelling."""

from __future__ import annotations

from enum import Enum

import ml_dtypes  # noqa: F401  (NumPy learns its dtypes)
import numpy as np


class DType(Enum):
    """An element type; the value is its ONNX name in lower case."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    BOOL = "bool"
    BFLOAT16 = "bfloat16"
    STRING = "string"

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype of the same storage; for strings the one of any length."""
        return np.dtype("U" if self is DType.STRING else self.value)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self.numpy.kind == "f" or self in _STORAGES

    @property
    def is_int(self) -> bool:
        return self.numpy.kind in "iu"

    @property
    def cl(self) -> str:
        """The OpenCL C scalar type of the storage."""
        return _CL_NAMES[self]

    @property
    def storage(self) -> str:
        """How `common/storage.clh` reads and writes elements: LOAD_AS(storage, p, i)."""
        return _STORAGES.get(self, "plain")

    @property
    def compute(self) -> str:
        """The OpenCL C scalar type in which elements are computed."""
        return "float" if self in _STORAGES else self.cl

    @classmethod
    def of(cls, dtype: np.dtype[np.generic] | type) -> DType:
        """The DType of a NumPy dtype.

        Raises:
            ValueError: NumPy has the dtype but clrt does not.
        """
        dtype = np.dtype(dtype)
        return cls.STRING if dtype.kind == "U" else cls(dtype.name)

    def __str__(self) -> str:
        return self.value


_CL_NAMES = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.FLOAT16: "half",
    DType.INT8: "char",
    DType.INT16: "short",
    DType.INT32: "int",
    DType.INT64: "long",
    DType.UINT8: "uchar",
    DType.UINT16: "ushort",
    DType.UINT32: "uint",
    DType.UINT64: "ulong",
    DType.BOOL: "uchar",
    DType.BFLOAT16: "ushort",
}
# The dtypes that are narrower in memory than in arithmetic.
_STORAGES = {DType.FLOAT16: "half", DType.BFLOAT16: "bfloat16"}

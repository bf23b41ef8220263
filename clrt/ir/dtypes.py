"""Element types, with their ONNX names, NumPy dtypes and OpenCL C types."""

from __future__ import annotations

from enum import Enum
from functools import cache, cached_property
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy learns its dtypes)
import numpy as np

from clrt.ir.cl_code import Code


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
    FLOAT8E4M3FN = "float8e4m3fn"
    FLOAT8E4M3FNUZ = "float8e4m3fnuz"
    FLOAT8E5M2 = "float8e5m2"
    FLOAT8E5M2FNUZ = "float8e5m2fnuz"
    FLOAT8E8M0 = "float8e8m0"
    FLOAT6E2M3 = "float6e2m3"
    FLOAT6E3M2 = "float6e3m2"
    FLOAT4E2M1 = "float4e2m1"
    UINT4 = "uint4"
    INT4 = "int4"
    UINT2 = "uint2"
    INT2 = "int2"
    STRING = "string"

    @cached_property
    def numpy(self) -> np.dtype[np.generic]:
        """NumPy dtype; "U" (any length) for strings.

        Dtypes that NumPy lacks are from ml_dtypes. Elements of fewer than 8 bits occupy a byte, on
        the device too, so that kernels can address each one.
        """
        return np.dtype(_NUMPY_NAMES.get(self, self.value))

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """NumPy dtype, equal to `numpy`; makes `np.dtype(DType.FLOAT32)` work."""
        return self.numpy

    @cached_property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self.value.startswith(("float", "bfloat"))

    @property
    def is_int(self) -> bool:
        return self.value.startswith(("int", "uint"))

    @property
    def cl(self) -> Code:
        """OpenCL C scalar type in which elements are stored."""
        return _CL_NAMES.get(self, _BYTE)

    @property
    def storage(self) -> Code:
        """Name of the format in which kernels store elements, for macros of common/storage.clh.

        "plain" if kernels compute in the same type that they store.
        """
        return _STORAGES.get(self, _PLAIN)

    @property
    def is_low_precision(self) -> bool:
        """Whether the dtype has at most 8 bits and is not int8, uint8 or bool."""
        return self.itemsize == 1 and self.storage != "plain"

    @property
    def compute(self) -> Code:
        """OpenCL C scalar type in which elements are computed."""
        if self not in _STORAGES:
            return self.cl
        return _FLOAT if self.is_float else _INT

    @property
    def cl_bits(self) -> Code:
        """Unsigned OpenCL C type of the same size, to copy elements."""
        return _CL_BITS[self.itemsize]

    @classmethod
    def of(cls, dtype: np.dtype[np.generic] | type) -> DType:
        """Returns the DType of a NumPy dtype.

        Raises:
            ValueError: clrt does not support the dtype, or its byte order is not this machine's
                (see `native`).
        """
        dtype = np.dtype(dtype)
        if not dtype.isnative and dtype.kind != "U":
            raise ValueError(f"{dtype.str} is in another machine's byte order")
        return cls.STRING if dtype.kind == "U" else _of_numpy(dtype)

    @property
    def file_bits(self) -> int:
        """Bits per element in ONNX files, which pack elements of 4 and 2 bits."""
        return _FILE_BITS.get(self, 8 * self.itemsize)

    @property
    def element_bits(self) -> int:
        """Number of significant bits of an element in memory; they are its low bits."""
        return 1 if self is DType.BOOL else _ELEMENT_BITS.get(self, self.file_bits)

    @property
    def onnx(self) -> int:
        """Number of the dtype in ONNX files (TensorProto.DataType)."""
        return _ONNX_ORDER.index(self)

    @classmethod
    def from_onnx(cls, code: int) -> DType | None:
        """Returns the DType of a number in ONNX files; None if clrt does not support it."""
        return _ONNX_ORDER[code] if 0 <= code < len(_ONNX_ORDER) else None

    def __str__(self) -> str:
        return self.value


@cache
def _of_numpy(dtype: np.dtype[Any]) -> DType:
    return _BY_NUMPY_NAME.get(dtype.name) or DType(dtype.name)  # `dtype.name` is slow, hence @cache


# Floats that kernels load and store as vectors of float32 (common/widen.clh).
HALVES = frozenset({DType.FLOAT16, DType.BFLOAT16})
FLOAT_STORAGES = HALVES | {DType.FLOAT32}
_ONNX_ORDER = (
    None, DType.FLOAT32, DType.UINT8, DType.INT8, DType.UINT16, DType.INT16, DType.INT32,
    DType.INT64, DType.STRING, DType.BOOL, DType.FLOAT16, DType.FLOAT64, DType.UINT32,
    DType.UINT64, None, None, DType.BFLOAT16, DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ,
    DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ, DType.UINT4, DType.INT4, DType.FLOAT4E2M1,
    DType.FLOAT8E8M0, DType.UINT2, DType.INT2, DType.FLOAT6E2M3, DType.FLOAT6E3M2,
)  # fmt: skip
_FILE_BITS = {
    **dict.fromkeys((DType.UINT4, DType.INT4, DType.FLOAT4E2M1), 4),
    **dict.fromkeys((DType.UINT2, DType.INT2), 2),
}
_ELEMENT_BITS = {DType.FLOAT6E2M3: 6, DType.FLOAT6E3M2: 6}
_NUMPY_NAMES = {
    DType.FLOAT8E4M3FN: "float8_e4m3fn",
    DType.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    DType.FLOAT8E5M2: "float8_e5m2",
    DType.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    DType.FLOAT8E8M0: "float8_e8m0fnu",
    DType.FLOAT6E2M3: "float6_e2m3fn",
    DType.FLOAT6E3M2: "float6_e3m2fn",
    DType.FLOAT4E2M1: "float4_e2m1fn",
    DType.STRING: "U",
}
_BY_NUMPY_NAME = {name: dtype for dtype, name in _NUMPY_NAMES.items()}
_BYTE, _PLAIN, _FLOAT, _INT = Code("uchar"), Code("plain"), Code("float"), Code("int")
_CL_BITS = {1: _BYTE, 2: Code("ushort"), 4: Code("uint"), 8: Code("ulong")}
_CL_NAMES = {
    DType.FLOAT32: Code("float"),
    DType.FLOAT64: Code("double"),
    DType.FLOAT16: Code("half"),
    DType.BFLOAT16: Code("ushort"),
    DType.INT8: Code("char"),
    DType.INT16: Code("short"),
    DType.INT32: Code("int"),
    DType.INT64: Code("long"),
    DType.UINT8: Code("uchar"),
    DType.UINT16: Code("ushort"),
    DType.UINT32: Code("uint"),
    DType.UINT64: Code("ulong"),
    DType.BOOL: Code("uchar"),
}
# Storage names of dtypes that are computed in a wider type.
_STORAGES: dict[DType, Code] = {
    DType.FLOAT16: Code("half"),
    **{d: Code(d.value) for d in DType if d not in _CL_NAMES and d is not DType.STRING},
    DType.BFLOAT16: Code("bfloat16"),
}
WIDENED_STORAGES = frozenset(d.storage for d in FLOAT_STORAGES)


def native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns an array contiguous and in this machine's byte order; copies it only if needed.

    Call this function before reading the bytes of an array that the user passed.
    """
    dtype = array.dtype
    return np.asarray(array, dtype if dtype.isnative else dtype.newbyteorder("="), order="C")


@cache
def converts_safely(source: np.dtype[np.generic], target: np.dtype[np.generic]) -> bool:
    """Returns whether a cast between NumPy dtypes is safe.

    NumPy decides, except for 8-bit and narrower dtypes of ml_dtypes. A cast from or to these is
    safe if it changes no value.
    """
    if all(dtype.isbuiltin == 1 or dtype.itemsize > 1 for dtype in (source, target)):
        return np.can_cast(source, target, "safe")
    if source.itemsize != 1 or target.kind == "U":
        return False
    with np.errstate(all="ignore"):
        codes = np.arange(256, dtype=np.uint8).view(source)
        numbers = codes.astype(np.float32).astype(source).astype(np.float32)
        back = numbers.astype(target).astype(np.float32)
    same = (back == numbers) & (np.signbit(back) == np.signbit(numbers))
    return bool((same | (np.isnan(back) & np.isnan(numbers))).all())
